"""A healthy host of each kind has no red line, and nothing of it is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.training.host.line import RED, UNKNOWN
from tests.host.made_host import MadeHost, under

RECIPES = {
    "a3": "deepseek-v3-cann-256die",
    "a2": "today-grpo-moonlight-16b",
    "cuda": "pai-deepseek-v3-128gpu",
    "cpu": "quickstart",
}


@pytest.mark.parametrize("kind", RECIPES)
def test_a_healthy_host_has_no_red_line(tmp_path: Path, kind: str) -> None:
    host = MadeHost(tmp_path, RECIPES[kind])
    before = under(tmp_path)
    report = host.report()
    assert [line for line in report.lines if line.state in (RED, UNKNOWN)] == []
    assert report.kind == kind
    assert set(under(tmp_path)) - set(before) <= {"proc/self/environ"}
