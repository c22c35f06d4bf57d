"""The steps of a run whose trainer counts updates, and of one that counts generated batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import known_faults
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.metrics import Point
from npu_rl.training.monitor.steps_done import COUNTS_BATCHES, steps_done
from tests.code_trees import lay

(FAULT,) = (fault for fault in known_faults() if fault.id == COUNTS_BATCHES)
UPSTREAM = "\n".join(place.text for place in FAULT.code)
FILE = FAULT.code[0].file
RECIPE = "verl-npu-dapo-qwen3-30b"
FILTERED = [Point(step, 0.0, {"train/num_gen_batches": 2.0}) for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("patched", "changes", "steps"),
    [
        (True, [], 3),
        (True, ["adaptations.dapo-steps=false"], 6),
        (True, ["env.NPU_RL_DAPO_STEPS=0"], 6),
        (False, [], 6),
    ],
)
def test_updates_count_unless_the_trainer_counts_batches(
    patched: bool, changes: list[str], steps: int, tmp_path: Path
) -> None:
    ended = f"\n{FAULT.ended[0].places[0].text}" if patched else ""
    code = lay(tmp_path, {FILE: UPSTREAM + ended})
    assert steps_done(load_recipe(RECIPE, changes), code, FILTERED) == steps


def test_another_trainer_counts_its_steps(tmp_path: Path) -> None:
    loaded = load_recipe("quickstart", [])
    assert steps_done(loaded, tmp_path, [Point(4, 0.0, {})]) == 4
    assert steps_done(loaded, tmp_path, []) == 0
