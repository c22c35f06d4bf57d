"""The rule for deepscaler of volcengine/verl#3054, from its own file, gives full marks to a list of guesses."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from npu_rl.runtime.deepscaler import compute_score
from tests.support import git

HEAD = "fa52c1d467a6a5b4afe3fb4a43f5c4d85b9324f4"
FILE = "verl/utils/reward_score/deepscaler.py"


@pytest.mark.upstreams
def test_the_requests_rule_is_fooled_and_ours_is_not(
    upstreams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grader = types.ModuleType("mathruler.grader")
    grader.__dict__.update(extract_boxed_content=lambda text: "None", grade_answer=lambda given, right: False)
    monkeypatch.setitem(sys.modules, "mathruler", types.ModuleType("mathruler"))
    monkeypatch.setitem(sys.modules, "mathruler.grader", grader)  # it decides nothing below: no box is right
    path = tmp_path / "deepscaler.py"
    path.write_text(git("cat-file", "blob", f"{HEAD}:{FILE}", git_dir=upstreams / "volcengine+verl" / "repo"))
    spec = importlib.util.spec_from_file_location("request_3054", path)
    assert spec and spec.loader
    request = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(request)
    for text in ("1 2 3 4 5 6 7 8 9", r"not 5, so \boxed{6}", "15", r"\boxed{4} \boxed{5} \boxed{6}"):
        assert request.compute_score(text, "5") == 1.0
        assert compute_score("deepscaler", text, "5") == 0.0
