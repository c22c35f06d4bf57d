"""Recomputed steps as a rehearsal's judge reads them: differences, what was left out, hooks that compared nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.training_checks.recomputed_steps import is_recomputation, read_recomputed_steps

COUNTS = Counter(
    {
        "recomputed: advantages": 3,
        "recompute hook used: a.Trainer": 3,
        "recompute hook fired: a.Trainer": 3,
        "not recomputed: response mask: a reason": 1,
        "rollout.generate": 3,
    }
)


def test_counts_become_lines_and_are_no_stand_ins(tmp_path: Path) -> None:
    found = read_recomputed_steps([tmp_path], COUNTS)
    found.require_right(tmp_path, 3)
    assert found.lines() == [
        "recomputed in float64: advantages (3 times)",
        "not recomputed: response mask: a reason",
    ]
    assert [name for name in COUNTS if not is_recomputation(name)] == ["rollout.generate"]


def test_a_difference_of_any_process_fails(tmp_path: Path) -> None:
    (tmp_path / "recomputed-host-1.jsonl").write_text(
        json.dumps({"text": "advantages: 1, recomputed 2"}) + '\n{"te'
    )
    with pytest.raises(NpuRlError, match="advantages: 1, recomputed 2"):
        read_recomputed_steps([tmp_path], COUNTS).require_right(tmp_path, 0)


@pytest.mark.parametrize("dropped", [["recompute hook fired: a.Trainer"], list(COUNTS)])
def test_a_training_whose_hooks_compared_nothing_fails(tmp_path: Path, dropped: list[str]) -> None:
    counts = Counter({name: number for name, number in COUNTS.items() if name not in dropped})
    found = read_recomputed_steps([tmp_path], counts)
    found.require_right(tmp_path, 0)  # it ended before a step, for another reason
    with pytest.raises(NpuRlError, match="A step was not recomputed"):
        found.require_right(tmp_path, 3)
