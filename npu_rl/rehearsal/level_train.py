"""Rehearsal levels that train: *train* with transformers as the rollout, *rollout* with vLLM's engine on two ranks.

cann-recipes-train's trainer, whose workers have one engine and one resharding only, runs on two ranks with vLLM.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal import scale_npu_trainer
from npu_rl.rehearsal.made_checkpoint import with_checkpoint
from npu_rl.rehearsal.patch_hooks import read_usage
from npu_rl.rehearsal.rehearsal_report import TrainPart
from npu_rl.rehearsal.run_differences.changed_settings import changed_settings
from npu_rl.rehearsal.scale_recipe import scale_recipe
from npu_rl.rehearsal.scale_rollout import Case, scale_for_rollout
from npu_rl.rehearsal.scale_server import has_server, scale_for_server
from npu_rl.rehearsal.training_checks.engine_differences import (
    ENGINE_LIMITS,
    require_differences,
    require_update_as_reference,
)
from npu_rl.rehearsal.training_checks.interrupted_training import (
    SAVED,
    is_interrupted,
    train_interrupted,
    with_checkpoints,
)
from npu_rl.rehearsal.training_checks.noise import require_different_noise
from npu_rl.rehearsal.training_checks.recomputed_steps import read_recomputed_steps
from npu_rl.rehearsal.training_checks.weight_syncs import read_weight_syncs, require_sync_per_step
from npu_rl.training.monitor.metrics import DIFFERENCE, Point, read_metrics, rewards, seconds
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run import begin_run, train
from npu_rl.training.run.prepare import Prepared, compose
from npu_rl.training.run.train import TransferLimits
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

INTERRUPTED: Case = "expert"
"""Case that is stopped and resumed; a second one would show the same of the checkpoint, for a minute more."""


def rehearse_training(
    prepared: Prepared, record: RunRecord, screen: PlainScreen, case: Case | None = None
) -> TrainPart:
    """Rehearse the training.

    Args:
        case: The case of the level *rollout*; None for the level *train*.

    Raises:
        RunStopped: If the user or the system stops it.
    """
    saved, layout = SAVED, None if case is None else OutputLayout("torch_dist")
    if prepared.recipe.trainer.module == scale_npu_trainer.MODULE:
        saved, layout = scale_npu_trainer.SAVED, scale_npu_trainer.CHECKPOINT
        recipe = scale_npu_trainer.scale_npu_trainer(prepared.recipe, record.name)
    elif case is not None:
        recipe = scale_for_rollout(prepared.recipe, record.name, case)
    elif has_server(prepared.paths.code):
        recipe = scale_for_server(prepared.recipe, record.name)
    else:
        recipe = scale_recipe(prepared.recipe, record.name)
    interrupts = case in (None, INTERRUPTED)
    recipe = with_checkpoints(recipe, saved) if interrupts else recipe
    changed = changed_settings(prepared.recipe, recipe)
    part = TrainPart(changed=changed, run=str(record.folder), engine=layout is not None)
    with _recorded(part, record):
        small = prepared.with_recipe(recipe)
        if layout is not None:
            small = with_checkpoint(small, record, layout, screen)
        serves = has_server(prepared.paths.code)
        limits = None if layout is None and not serves else ENGINE_LIMITS
        if interrupts and is_interrupted(recipe.steps, saved):
            _train_and_resume(small, record, screen, part, saved, limits)
        else:
            _train_scaled(small, record, screen, part, transfer=limits)
        if layout is not None:
            require_differences(record.curve(), record.folder)
        if (
            recipe.model.load_weights is not False
        ):  # else actor and reference have random weights of their own
            require_update_as_reference(record.curve(), record.folder)
    return part


def _train_and_resume(
    small: Prepared,
    record: RunRecord,
    screen: PlainScreen,
    part: TrainPart,
    saved: int,
    limits: TransferLimits | None,
) -> None:
    """Train with an interruption, and a resume after the checkpoint of step `saved`."""

    def attempt(resume: bool, stop_after: int | None) -> None:
        own = replace(limits, first=None) if limits and resume else limits
        _train_scaled(small, record, screen, part, transfer=own, resume=resume, stop_after=stop_after)

    part.resumed = train_interrupted(record, saved, small.recipe.cluster.world, attempt)


@contextmanager
def _recorded(part: TrainPart, record: RunRecord) -> Iterator[None]:
    """Record in `part` why its training fails, and facts from the run record's metrics.

    Raises:
        RunStopped: If the user or the system stops it.
    """
    try:
        yield
    except train.RunStopped:
        raise
    except NpuRlError as error:
        part.failure = str(error)
    _read_curve(part, record)
    part.weight_syncs = read_weight_syncs(part.usage)
    part.recomputed = read_recomputed_steps(part.usage, read_usage(*part.usage)[1])
    try:
        part.recomputed.require_right(record.folder, len(record.curve()))
        part.weight_syncs.require_equal(record.folder, len(record.curve()))
        for attempt in record.attempts:
            require_sync_per_step(attempt.usage, len(rewards(read_metrics(attempt.metrics))))
        for usage in part.usage:
            require_different_noise(usage)
    except NpuRlError as error:  # the cause of what the trainer then failed with
        part.failure = str(error)


def _train_scaled(
    small: Prepared,
    record: RunRecord,
    screen: PlainScreen,
    part: TrainPart,
    *,
    transfer: TransferLimits | None = None,
    resume: bool = False,
    stop_after: int | None = None,
) -> None:
    """Train a recipe that was scaled down, and add the duration to `part`.

    Args:
        transfer: Greatest differences between the probabilities of rollout and actor. None uses the stand-in of the
            rollout, whose limit follows from the vocabulary.
        resume: Whether to go on from the record's newest checkpoint.
        stop_after: Step after which it is stopped, as by a user.

    Raises:
        NpuRlError: If the training fails.
    """
    standin = transfer is None
    command = small.command(record.folder.parent, record.mark, 1, None, rollout_standin=standin)
    composed = compose(small, command)
    if resume:
        begin_run.require_checkpoint(small, record, composed, screen.note)
    trained = train.run_attempt(
        small,
        record,
        composed,
        screen,
        resume=resume,
        rollout_standin=standin,
        transfer=transfer,
        stop_after=stop_after,
    )
    part.seconds += trained.ended.seconds


def _read_curve(part: TrainPart, record: RunRecord) -> None:
    """Set a part's facts from the record's metrics, and the folder of its usage counts."""
    part.usage += [attempt.usage for attempt in record.attempts]
    points = record.curve()
    part.curve = rewards(points)
    part.transfer = _transfer(points)
    took = [value for value in (seconds(point.data) for point in points) if value is not None]
    part.seconds_per_step = statistics.median(took) if took else None


def _transfer(points: list[Point]) -> float | None:
    """Return the largest probability difference in the first ten steps, while the policy has hardly changed."""
    found = [point.data[DIFFERENCE] for point in points[:10] if DIFFERENCE in point.data]
    return max(found, default=None)
