"""The begin of a run: its composed configuration, and its record, new or opened to resume."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from npu_rl.common.bounded import read_file
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.own_keys import can_resume
from npu_rl.recipes.recipe.trainer_command import Command
from npu_rl.training.monitor.long_stage import long_stage
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.free_name import with_free_name
from npu_rl.training.record.run_errors import RunGoesOn, RunNameTaken
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.no_checkpoint import no_checkpoint_reason
from npu_rl.training.run.prepare import Prepared, compose, runs_folder
from npu_rl.training.run.recorded_facts import run_facts
from npu_rl.training.run.resume_point import ResumePoint, go_on_from, resume_point


@dataclass(frozen=True)
class BegunRun:
    """A run with a record, before its next attempt.

    Attributes:
        prepared: As it was, or with another name.
        config: The trainer's composed configuration.
    """

    prepared: Prepared
    record: RunRecord
    config: Mapping[str, object]


def begin_run(
    prepared: Prepared, screen: PlainScreen, *, resume: bool = False, ended_on: str | None = None
) -> BegunRun:
    """Compose the configuration and create or open the record.

    Another `train` of the recipe may have created a record of the name while this one was prepared: a new run gets the
    next free name then, unless the user has named it.

    Args:
        ended_on: Another host, where the user knows that the run to resume has ended.

    Raises:
        RunNameTaken: If the run exists, and the user named it.
        RunGoesOn: If it goes on, and the user named it, or both would use the same devices.
        NpuRlError: If the configuration is refused, or the run can't be resumed.
    """
    runs = runs_folder(prepared.paths)
    if resume:  # before the configuration is composed, which takes a while
        RunRecord.load(runs, prepared.recipe.name).require_ended(ended_on)
    while True:
        with long_stage(screen, "composing the configuration"):
            # Before the record is created, since Hydra may refuse the recipe.
            config = compose(prepared, first_command(prepared, runs))
        try:
            record = (
                resumed_record(prepared, runs, config, screen.note)
                if resume
                else new_record(prepared, runs, prepared.recipe.name, run_facts(prepared), claimed=True)
            )
            return BegunRun(prepared, record, config)
        except (RunNameTaken, RunGoesOn):
            if resume:
                raise
            loaded = with_free_name(prepared.loaded, runs, screen.note)
            if loaded.recipe.name == prepared.recipe.name:
                raise
            prepared = replace(prepared, loaded=loaded)


def first_command(prepared: Prepared, runs: Path) -> Command:
    """Return the command of a run's first attempt without starting it."""
    return prepared.command(runs, uuid.uuid4().hex, 1, None)


def resumed_record(
    prepared: Prepared, runs: Path, config: Mapping[str, object], notify: Callable[[str], None]
) -> RunRecord:
    """Return the record of a run to resume, and select its checkpoint. Raises NpuRlError if it can't be resumed."""
    name = prepared.recipe.name
    record = RunRecord.load(runs, name)
    before, now = record.facts.get("tree"), prepared.lock.tree
    if before != now:
        raise NpuRlError(
            f"Run {name} was begun with another tree",
            where=str(record.folder / "run.json"),
            why=f"It was {before}, the workspace is {now}.",
            hint="Set that tree up again, or begin a run of another name: name=…",
        )
    require_checkpoint(prepared, record, config, notify)
    return record


def require_checkpoint(
    prepared: Prepared, record: RunRecord, config: Mapping[str, object], notify: Callable[[str], None]
) -> None:
    """Select the newest complete checkpoint to resume from. Raises NpuRlError without one, or if no steps are left."""
    if prepared.recipe.has_own_keys:
        point = ResumePoint(record.latest_checkpoint if can_resume(prepared.recipe) else None)
    else:
        point = resume_point(record, prepared.recipe, config)
    done = point.step
    if done is None:
        every = prepared.recipe.checkpoint.every
        saving = ", with checkpoint.every=N to save one every N steps" if every == -1 else ""
        raise NpuRlError(
            f"Run {record.name} has no checkpoint to resume from",
            where=str(record.checkpoints),
            why=no_checkpoint_reason(record, prepared.recipe),
            hint=f"Begin a run of another name (name=…){saving}.",
        )
    if done >= prepared.recipe.steps:
        raise NpuRlError(
            f"Run {record.name} has done its {prepared.recipe.steps} steps",
            where=str(record.folder),
            hint=f"To continue, set steps=N with N above {done}.",
        )
    if not prepared.recipe.has_own_keys:
        go_on_from(record, point, notify)


def new_record(
    prepared: Prepared, runs: Path, name: str, facts: Mapping[str, object], *, claimed: bool = False
) -> RunRecord:
    """Create a record with the workspace's lock. Secrets in the facts for run.json are masked.

    Args:
        claimed: As of `RunRecord.create`.
    """
    return RunRecord.create(
        runs,
        name,
        facts,
        lock=read_file(prepared.paths.lock),
        secrets=prepared.secrets(os.environ),
        resume_below=prepared.recipe.steps if can_resume(prepared.recipe) else 0,
        claimed=claimed,
    )
