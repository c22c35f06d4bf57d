"""A rank that leaves a collective of a real Ray is named while the others wait; benchmarks/hangs.py has other kinds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.training.hang_run import hang

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc"),
]


def test_a_rank_that_left_a_collective_is_named_with_those_that_wait_for_it(tmp_path: Path) -> None:
    hung = hang(tmp_path, "left", work=0.1)
    assert hung.error == ""
    (alarm,) = [alarm for _, alarm in hung.alarms]
    assert alarm.kind == "no-progress" and alarm.message.startswith("step 4 takes ")
    odd, waiting = alarm.cause.splitlines()[:2]
    assert odd.startswith("rank 1 (") and "waits for its next task" in odd
    assert waiting.startswith("rank 0 (") and "hang_program.py" in waiting and "in all_reduce)" in waiting
    assert "hang_program.py" in Path(alarm.place).read_text()
