"""Adaptation parameter-groups: a checkpoint's groups in this rank's order."""

from __future__ import annotations

from typing import Any

import pytest

from npu_rl.runtime import parameter_groups


def group(wd_mult: float, **more: Any) -> dict[str, Any]:
    return {"wd_mult": wd_mult, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False, **more}


def test_groups_are_found_by_kind() -> None:
    saved = [group(1.0, lr=1), group(0.0, lr=2), group(1.0, is_expert_parallel=True, lr=3)]
    own = [group(0.0), group(1.0, is_expert_parallel=True)]
    assert [one["lr"] for one in parameter_groups.in_order(saved, own)] == [2, 3]


def test_switched_off_they_stay_in_the_checkpoints_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_RL_PARAMETER_GROUPS", "0")
    saved = [group(1.0), group(0.0)]
    assert parameter_groups.in_order(saved, saved[::-1]) == saved


def test_a_group_that_is_not_in_the_checkpoint_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no parameter group with .*'wd_mult': 0\.0"):
        parameter_groups.in_order([group(1.0)], [group(0.0)])


def test_a_group_that_rank_0_did_not_count_gets_the_others_step() -> None:
    """Not where the step is a tensor: each group's is its own, and MindSpeed counts it in empty groups, too."""
    own = [group(0.0), group(1.0)]
    assert [one["step"] for one in parameter_groups.in_order([group(1.0, step=7), group(0.0)], own)] == [7, 7]
    assert "step" not in parameter_groups.in_order([group(1.0, step=[7]), group(0.0)], own)[0]
