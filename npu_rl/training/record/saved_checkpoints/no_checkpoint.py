"""Why a run can't be resumed."""

from __future__ import annotations

from npu_rl.recipes.recipe.own_keys import can_resume
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import megatron_folder


def no_checkpoint_reason(record: RunRecord, recipe: Recipe) -> str:
    """Return why a run has no checkpoint to continue from."""
    if not can_resume(recipe):
        return "trainer.keys.checkpoint needs folder and load: the keys of where checkpoints are written and loaded."
    step = record.recorded_checkpoint
    if step is not None:
        folder = megatron_folder(step) if recipe.has_own_keys else f"global_step_{step}"
        return f"the folder of its newest, {folder}, is gone."
    return (
        "checkpoint.every is -1, which saves none."
        if recipe.checkpoint.every == -1
        else "it ended before the first."
    )
