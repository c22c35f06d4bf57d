"""Rehearsal level *rollout*: two ranks with vLLM's V1 engine, starting from a converted checkpoint."""

from __future__ import annotations

from npu_rl.rehearsal.level_train import recorded, train_and_resume, train_scaled
from npu_rl.rehearsal.made_checkpoint import with_checkpoint
from npu_rl.rehearsal.rehearsal_report import TrainPart
from npu_rl.rehearsal.run_differences.changed_settings import other_changes
from npu_rl.rehearsal.scale_rollout import Case, scale_for_rollout
from npu_rl.rehearsal.training_checks.engine_differences import (
    ENGINE_LIMITS,
    require_differences,
    require_update_as_reference,
)
from npu_rl.rehearsal.training_checks.interrupted_training import SAVED, with_checkpoints
from npu_rl.training.monitor.screen import Screen
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.prepare import Prepared
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

_DIST = OutputLayout("torch_dist")
INTERRUPTED: Case = "expert"
"""Case that is stopped and resumed; a second one would show the same of the checkpoint, for a minute more."""


def rehearse_rollout(prepared: Prepared, record: RunRecord, case: Case, screen: Screen) -> TrainPart:
    """Rehearse one case.

    Raises:
        RunStopped: If the user or the system stops it.
    """
    recipe, changed = scale_for_rollout(prepared.recipe, record.name, case)
    if case == INTERRUPTED:
        recipe = with_checkpoints(recipe, SAVED)
    changed += other_changes(prepared.recipe, recipe, changed)
    part = TrainPart(changed=changed, run=str(record.folder), engine=True)
    with recorded(part, record):
        small = with_checkpoint(prepared.with_recipe(recipe), record, _DIST, screen)
        if case == INTERRUPTED:
            train_and_resume(small, record, screen, part, SAVED, ENGINE_LIMITS)
        else:
            train_scaled(small, record, screen, part, transfer=ENGINE_LIMITS)
        require_differences(record.curve(), record.folder)
        require_update_as_reference(record.curve(), record.folder)
    return part
