"""A recorded run, read from its folder without changing it, for all commands that show runs.

A damaged file is an error for its run, with the file as the place.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE
from npu_rl.common.environment_variables import RUNS
from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import MASK
from npu_rl.common.user_path import user_path
from npu_rl.training.monitor.metrics import Point, curve, replaced_from, rewards
from npu_rl.training.record.attempt import damaged, read_object
from npu_rl.training.record.recorded_attempt import RecordedAlarm, RecordedAttempt, RecordedRecipe
from npu_rl.training.record.rehearsal_end import rehearsal_outcome
from npu_rl.training.record.run_errors import NoSuchRun
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.samples import sample_steps

RUNNING, NEW, KILLED, UNKNOWN = "running", "new", "killed", "unknown"
"""States of a run that its last attempt's outcome (done, failed, stopped) does not tell."""


@dataclass(frozen=True)
class RecordedRun:
    """The state of a run's folder at the time of reading.

    Attributes:
        state: RUNNING: its npu-rl has locked it; an outcome of the last attempt: done, failed or stopped; of a
            rehearsal that of its verdict, or of its end without one; KILLED: no end, begun here; UNKNOWN: no end, begun
            on another host; NEW: no attempt was begun.
        begun_on: The other host, if the state is UNKNOWN.
        verdict: The content of a rehearsal's rehearsal.json, with `ok`; empty of other runs, and until it has ended.
        read_at: When it was read, in seconds since the epoch.
    """

    record: RunRecord
    state: str
    begun_on: str | None
    verdict: dict[str, Any]
    attempts: tuple[RecordedAttempt, ...]
    read_at: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.record.name

    @property
    def former_name(self) -> str | None:
        """The name that it was created with; None if its folder has that."""
        name = self.fact("name")
        return None if name == self.name else name

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.record.folder

    @property
    def facts(self) -> Mapping[str, Any]:
        """The content of run.json: what all attempts share."""
        return self.record.facts

    @property
    def last(self) -> RecordedAttempt | None:
        """The last attempt; None if the run is new."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_running(self) -> bool:
        """Return whether the run is in progress."""
        return self.state == RUNNING

    @property
    def may_go_on(self) -> bool:
        """Return whether the run is in progress, or may be on another host."""
        return self.state in (RUNNING, UNKNOWN)

    def fact(self, name: str) -> str | None:
        """Return a string or number of run.json as text; None if it is missing."""
        value = self.facts.get(name)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None

    @property
    def recipe(self) -> RecordedRecipe:
        """What the last attempt ran; without attempts what the run was created for."""
        return self.last.recipe if self.last else RecordedRecipe(self.facts)

    def recipe_of_step(self, step: int) -> RecordedRecipe:
        """Return what the attempt ran that did a step, as the curve has it."""
        did = [one for one in self.attempts if one.points and replaced_from(one.points) <= step]
        return did[-1].recipe if did else self.recipe

    @property
    def recipe_data(self) -> Mapping[str, Any]:
        """The resolved recipe of the last attempt as plain data; empty without attempts."""
        return self.last.recipe_data if self.last else {}

    @property
    def recipe_text(self) -> str:
        """The same as text, with a comment on where each value was set."""
        return self.last.recipe_text if self.last else ""

    @property
    def unproven(self) -> str | None:
        """The user's reason for code that differs from the lock, of the first such attempt; None if all is proven."""
        return self.record.unproven

    @property
    def packages(self) -> dict[str, str]:
        """The versions of the interpreter's packages by name."""
        return dict(self.facts.get("interpreter", {}).get("packages", {}))

    @property
    def nodes(self) -> int | None:
        """Nodes that took part in the last attempt, else those of the recipe."""
        if self.last is not None and self.last.nodes:
            return len(self.last.nodes)
        found = self.recipe_data.get("cluster", {}).get("nodes")
        return None if found is None else int(found)

    @property
    def dies_per_card(self) -> int:
        """Number of devices per card."""
        return int(self.recipe_data.get("cluster", {}).get("dies_per_card", 1))

    @cached_property
    def points(self) -> list[Point]:
        """Metrics of all attempts by step. A resumed attempt replaces the steps that it repeats."""
        try:
            return curve(self.folder)
        except OSError as error:
            raise damaged(Path(error.filename or self.folder), error) from error

    @cached_property
    def latest(self) -> list[Point]:
        """The steps of the last attempt that has any."""
        return next((attempt.points for attempt in reversed(self.attempts) if attempt.points), [])

    def steps_of(self, attempt: RecordedAttempt) -> tuple[int, int] | None:
        """Return the first and last step of an attempt that are the run's: no later attempt did them again."""
        later = [
            replaced_from(one.points) for one in self.attempts if one.number > attempt.number and one.points
        ]
        steps = [point.step for point in attempt.points if point.step < min(later, default=point.step + 1)]
        return (min(steps), max(steps)) if steps else None

    @property
    def steps(self) -> int:
        """The last logged step."""
        return max((point.step for point in self.latest), default=0)

    @property
    def last_reward(self) -> float | None:
        """The mean reward of the last step that has one."""
        found = rewards(self.latest) or (rewards(self.points) if self.latest else [])
        return found[-1][1] if found else None

    @cached_property
    def alarms(self) -> list[RecordedAlarm]:
        """The alarms of all attempts."""
        return [alarm for attempt in self.attempts for alarm in attempt.alarms]

    @property
    def seconds(self) -> float | None:
        """The total time of all attempts; None without any."""
        return sum(map(self.seconds_of, self.attempts)) if self.attempts else None

    def seconds_of(self, attempt: RecordedAttempt) -> float:
        """Return the time of an attempt; of one without a recorded end until now, or until its last output."""
        until = attempt.ended
        if until is None and self.is_running and attempt is self.last:
            until = self.read_at
        if until is None:
            log = attempt.driver_log
            until = log.stat().st_mtime if log.exists() else attempt.started
        return max(until - attempt.started, 0.0)

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The workspace's lock as data: components with pins, merges and patches; empty of a run without one."""
        return read_object(self.folder / "lock.json", optional=True)

    def sample_files(self, *, validation: bool = False) -> dict[int, Path]:
        """Return the sample files by step, of training or of validations.

        Those that an earlier attempt has left of steps that were cut off or done again are not the run's any more. The
        time of a file shows the latter only in the original: in a copy without times it is that of the copy.
        """
        files = sample_steps(self.record.samples, validation=validation)
        resumed = [attempt for attempt in self.attempts[1:] if attempt.points]
        if not resumed:
            return files
        first, begun = replaced_from(resumed[-1].points), resumed[-1].started
        latest = self.steps + 1 if self.is_running else self.steps
        return {
            step: path
            for step, path in files.items()
            if step <= latest and (step < first or path.stat().st_mtime >= begun)
        }


def recorded_run(root: Path, name: str) -> RecordedRun:
    """Read a recorded run, whether in progress or not.

    Args:
        root: The folder of run records.
        name: The run's name.

    Raises:
        NoSuchRun: If there is no such run.
        NpuRlError: If a file of its record is damaged.
    """
    record = RunRecord.load(root, name)
    locked = record.is_locked  # before its end is read: that is written while the run is locked
    attempts = tuple(record.attempts)
    rehearsal = record.facts.get("rehearsal") is not None
    verdict = read_object(record.folder / "rehearsal.json", optional=True) if rehearsal else {}
    host = None if locked else record.other_host
    state = RUNNING if locked else _ended_state(record, attempts, verdict, host)
    return RecordedRun(record, state, host if state == UNKNOWN else None, verdict, attempts)


def _ended_state(
    record: RunRecord, attempts: Sequence[RecordedAttempt], verdict: dict[str, Any], host: str | None
) -> str:
    """Return the state of a run that is not locked."""
    if verdict:
        return "done" if verdict["ok"] else "failed"
    rehearsed = rehearsal_outcome(record.folder)
    if rehearsed is not None:
        return rehearsed
    outcome = attempts[-1].outcome if attempts else None
    without_verdict = bool(record.facts.get("gets_verdict")) and outcome == "done"
    if outcome is not None and not without_verdict:
        return outcome
    if host:
        return UNKNOWN
    return KILLED if attempts or record.facts.get("rehearsal") else NEW


def recorded_runs(root: Path) -> tuple[list[RecordedRun], list[NpuRlError]]:
    """Return all runs in a folder, oldest first, and the errors of damaged ones."""
    found: list[RecordedRun] = []
    errors: list[NpuRlError] = []
    for folder in _folders(root):
        try:
            found.append(recorded_run(root, folder.name))
        except NoSuchRun:
            continue
        except NpuRlError as error:
            error.where = error.where or str(folder)
            errors.append(error)
    return sorted(found, key=lambda run: (run.fact("created") or "", run.name)), errors


def train_command(run: RecordedRun, *, resume: bool) -> str:
    """Return the command that resumes a run, or begins another like it, from this folder and shell.

    It has the last attempt's overrides, and resumes the run by the name that it has now, since it may be renamed. A
    secret that the record has masked is left out of a resume, which asks for it.
    """
    overrides = run.recipe.overrides
    words = [word for word in overrides if not word.startswith("name=")]
    if resume:
        named = len(words) < len(overrides) or run.name != run.fact("recipe")
        words = [word for word in words if MASK not in word] + [f"name={run.name}"] * named + ["--resume"]
    command, place = shlex.join(["npu-rl", "train", run.recipe.argument, *words]), run.fact("workspace")
    if place is None:
        return command
    if Path(place) not in (Path.cwd(), *Path.cwd().parents):
        command += f" --workspace {shlex.quote(place)}"
    chosen = os.environ.get(RUNS.name)
    records = user_path(chosen, RUNS.name).absolute() if chosen else Path(place, "runs")
    own = run.folder.parent
    return command if own == records else f"{RUNS.name}={shlex.quote(str(own))} {command}"


def _folders(root: Path) -> list[Path]:
    """Return the folders that may be runs. `glob` would leave out what this user may not read."""
    try:
        found = sorted(path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir())
        return [path for path in found if path.name != "lost+found"]  # of a disk that is mounted there
    except OSError as error:
        if error.errno in NO_FILE:
            return []
        raise
