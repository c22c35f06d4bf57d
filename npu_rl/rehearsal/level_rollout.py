"""Rehearsal level *rollout*: two ranks with vLLM's V1 engine, from a converted checkpoint."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.dist_checkpoint import convert_tiny_model
from npu_rl.rehearsal.interrupted_training import SAVED
from npu_rl.rehearsal.level_train import (
    LATER_DIFFERENCE_LIMIT,
    recorded,
    train_and_resume,
    train_scaled,
)
from npu_rl.rehearsal.rehearsal_report import TrainPart
from npu_rl.rehearsal.scale_rollout import Case, scale_for_rollout
from npu_rl.training.monitor.screen import Screen
from npu_rl.training.monitor.watch import DIFFERENCE
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run import tiny_model
from npu_rl.training.run.prepare import Prepared
from npu_rl.training.run.train import TransferLimits

FIRST_DIFFERENCE_LIMIT = 0.0015
"""Greatest mean difference between the probabilities of rollout and actor in the first step.

Measured on the checkpoint's weights: 0.0006, as bfloat16 rounds. MindSpeed's own softmax scale does not exceed it on
this model: 0.0006 in the first step, 0.0031 in the third.
"""
INTERRUPTED: Case = "expert"
"""Case that is stopped and resumed; a second one would show the same of the checkpoint, for a minute more."""
_LIMITS = TransferLimits(FIRST_DIFFERENCE_LIMIT, LATER_DIFFERENCE_LIMIT)


def rehearse_rollout(prepared: Prepared, record: RunRecord, case: Case, screen: Screen) -> TrainPart:
    """Rehearse one case.

    Raises:
        RunStopped: If the user or the system stops it.
    """
    recipe, changed = scale_for_rollout(prepared.recipe, record.name, case)
    part = TrainPart(changed=changed, run=str(record.folder), engine=True)
    with recorded(part, record):
        checkpoint = _checkpoint(prepared.with_recipe(recipe), record, screen)
        model = recipe.model.model_copy(update={"checkpoint": str(checkpoint)})
        small = prepared.with_recipe(recipe.model_copy(update={"model": model}))
        if case == INTERRUPTED:
            train_and_resume(small, record, screen, part, SAVED, _LIMITS)
        else:
            train_scaled(small, record, screen, part, transfer=_LIMITS)
        _require_differences(record)
    return part


def _checkpoint(small: Prepared, record: RunRecord, screen: Screen) -> Path:
    """Make the tiny model, and convert it to a dist checkpoint."""
    runs = record.folder.parent
    place = tiny_model.model_folder(runs, small.recipe, small.interpreter)
    command = small.command(runs, record.mark, 1, None)
    screen.stage("making the model and the data")
    tiny_model.make(place, small.recipe, small.interpreter, command.environment)
    screen.stage("converting the model to a Megatron checkpoint")
    return convert_tiny_model(small, place)


def _require_differences(record: RunRecord) -> None:
    if not any(DIFFERENCE in point.data for point in record.curve()):
        raise NpuRlError(
            "The trainer reported no difference between the probabilities of rollout and actor",
            where=str(record.folder),
            why=f"No step has {DIFFERENCE}, so nothing showed whether they compute alike.",
        )
