"""The number of steps by the trainer's own count, which shows whether it ended early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npu_rl.recipes.faults.fault import known_faults
from npu_rl.recipes.faults.verdict import judge_tree
from npu_rl.recipes.judgement.fault_findings import switched_off
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.plan_inputs import run_environment
from npu_rl.training.monitor.metrics import Point, generated_batches

COUNTS_BATCHES = "dapo-counts-generations"  # the known fault


def steps_done(loaded: LoadedRecipe, code: Path, points: Sequence[Point]) -> int:
    """Return a run's number of steps, which is the number of its last step.

    DAPO's trainer counts the batches that it generates in their place, where the tree has that fault or the adaptation
    `dapo-steps` is off: it has ended as it should, although with fewer updates.

    Args:
        loaded: The recipe.
        code: The code folder.
        points: The run's metrics by step.
    """
    if not points:
        return 0
    done = points[-1].step
    batches = generated_batches(points)
    return batches if batches > done and _counts_batches(loaded, code) else done


def _counts_batches(loaded: LoadedRecipe, code: Path) -> bool:
    faults = [fault for fault in known_faults() if fault.id == COUNTS_BATCHES]
    off = switched_off(loaded, run_environment(loaded))
    return any(found.is_open for found in judge_tree(code, faults, off))
