"""A recorded run, read from its folder without changing it, for all commands that show runs.

Records of earlier versions and of killed runs lack files, and a copied record may hold anything: what can't be read is
named in `missing`, and the rest is shown.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, parse_yaml, read_file
from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.file_digests import BUNDLED
from npu_rl.training.monitor.metrics import Point, curve, read_metrics, rewards, seconds
from npu_rl.training.record.attempt import LARGEST_RECIPE
from npu_rl.training.record.marked_processes import marked_processes
from npu_rl.training.record.recorded_attempt import (
    RecordedAlarm,
    RecordedAttempt,
    number_at,
    optional_object,
    recorded_attempt,
    unreadable,
)
from npu_rl.training.record.rehearsal_end import rehearsal_state
from npu_rl.training.record.run_errors import NoSuchRun, removal_noticed, unreadable_run
from npu_rl.training.record.run_lock import has_lock
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.samples import sample_steps

RUNNING, NEW, UNKNOWN = "running", "new", "unknown"
"""States of a run that its last attempt's outcome (done, failed, stopped, killed) does not tell."""


@dataclass(frozen=True)
class RecordedRun:
    """The state of a run's folder at the time of reading.

    Attributes:
        state: RUNNING; an outcome of the last attempt: done, failed, stopped or killed; of a rehearsal that of its
            verdict, or of its end without one; NEW: no attempt was begun; UNKNOWN: its last attempt has no end, and
            was begun on another host.
        processes: Its processes on this host.
        recipe: The resolved recipe of the last attempt, as plain data; empty if it can't be read.
        recipe_text: The same file as text, with a comment on where each value was set.
        missing: Files that the record should have and that can't be read, each with the reason.
        read_at: When it was read, in seconds since the epoch.
    """

    record: RunRecord
    state: str
    processes: tuple[int, ...]
    attempts: tuple[RecordedAttempt, ...]
    recipe: Mapping[str, Any]
    recipe_text: str
    missing: tuple[str, ...]
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
        """The content of run.json."""
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

    @property
    def lost_npu_rl(self) -> bool:
        """Return whether its npu-rl was killed while its trainer continues."""
        return self.is_running and bool(self.processes) and not self.record.is_locked

    @property
    def is_cut_off(self) -> bool:
        """Return whether its npu-rl was killed, so that later steps are only in the driver's log."""
        return not self.record.is_locked and self.last is not None and self.last.outcome is None

    @property
    def leftover(self) -> tuple[int, ...]:
        """Processes that an ended run left on this host."""
        return () if self.is_running else self.processes

    def fact(self, name: str) -> str | None:
        """Return a string or number of run.json as text; None if it is missing."""
        value = self.facts.get(name)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None

    @property
    def recipe_argument(self) -> str:
        """The recipe's argument for a command line: its bundled name, or the recorded path."""
        path = self.fact("recipe_path")
        if path:
            return path
        files = self.facts.get("recipe_files")
        first = str(next(iter(files), "")) if isinstance(files, dict) else ""
        if first.startswith(BUNDLED):
            return first.removeprefix(BUNDLED).removesuffix(".yaml")
        return first or self.fact("recipe") or "RECIPE"

    @property
    def extended_recipes(self) -> tuple[str, ...]:
        """Names of the bundled recipes that the recipe extends, the nearest first."""
        files = self.facts.get("recipe_files")
        named = [str(name) for name in files] if isinstance(files, dict) else []
        bundled = (
            one.removeprefix(BUNDLED).removesuffix(".yaml") for one in named if one.startswith(BUNDLED)
        )
        return tuple(name for name in bundled if name != self.recipe_name)

    @property
    def recipe_name(self) -> str:
        """The name of the recipe's file, without its suffix."""
        return Path(self.recipe_argument).name.removesuffix(".yaml")

    @property
    def overrides(self) -> tuple[str, ...]:
        """KEY=VALUE arguments of the command line, with secrets masked."""
        given = self.facts.get("overrides")
        return tuple(map(str, given)) if isinstance(given, list) else ()

    @property
    def packages(self) -> dict[str, str]:
        """The versions of the interpreter's packages by name."""
        interpreter = self.facts.get("interpreter")
        found = interpreter.get("packages") if isinstance(interpreter, dict) else None
        return {str(name): str(version) for name, version in found.items()} if isinstance(found, dict) else {}

    @property
    def goal(self) -> float | None:
        """The recipe's goal for the mean reward."""
        return number_at(self.recipe, "reward", "goal")

    @property
    def total(self) -> int | None:
        """The recipe's number of steps."""
        found = number_at(self.recipe, "steps")
        return None if found is None else int(found)

    @property
    def nodes(self) -> int | None:
        """Nodes that took part in the last attempt, else those of the recipe."""
        if self.last is not None and self.last.nodes:
            return len(self.last.nodes)
        found = number_at(self.recipe, "cluster", "nodes")
        return None if found is None else int(found)

    @property
    def dies_per_card(self) -> int:
        """Number of devices per card."""
        return max(int(number_at(self.recipe, "cluster", "dies_per_card") or 1), 1)

    @cached_property
    def points(self) -> list[Point]:
        """Metrics of all attempts by step. A resumed attempt replaces the steps that it repeats."""
        with contextlib.suppress(OSError):  # named in `missing`
            return curve(self.folder)
        return []

    @cached_property
    def latest(self) -> list[Point]:
        """Only the last logged steps, read from the end of the last attempt that has any."""
        for attempt in reversed(self.attempts):
            with contextlib.suppress(OSError):  # named in `missing`
                if found := read_metrics(attempt.folder / "metrics.jsonl"):
                    return found
        return []

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
        """The total time of all attempts; None if it was not recorded."""
        known = [
            took for attempt in self.attempts if (took := attempt.seconds(self._until(attempt))) is not None
        ]
        return sum(known) if known else None

    def _until(self, attempt: RecordedAttempt) -> float:
        """Return the assumed end of an attempt without a recorded end: now, or the time of its last output."""
        if self.is_running:
            return self.read_at
        try:
            return attempt.driver_log.stat().st_mtime
        except OSError:
            return attempt.started or 0.0

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The workspace's lock as data: components with pins, merges and patches; empty if it can't be read."""
        return optional_object(self.folder / "lock.json")

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """The content of a rehearsal's rehearsal.json, with `ok`; empty of other runs, and until it has ended."""
        return _verdict(self.record)

    def sample_files(self, *, validation: bool = False) -> dict[int, Path]:
        """Return the sample files by step, of training or of validations.

        Those that an earlier attempt has left of steps that were cut off or done again are not the run's any more. The
        time of a file shows the latter only in the original: in a copy without times it is that of the copy.
        """
        files = sample_steps(self.record.samples, validation=validation)
        resumed = [attempt for attempt in self.attempts[1:] if attempt.points]
        if not resumed:
            return files
        first, begun = _first_trained(resumed[-1].points), resumed[-1].started
        latest = self.steps + 1 if self.is_running else self.steps
        return {
            step: path
            for step, path in files.items()
            if step <= latest and (step < first or begun is None or _changed_since(path, begun))
        }


def recorded_run(
    root: Path, name: str, processes: Mapping[str, tuple[int, ...]] | None = None
) -> RecordedRun:
    """Read a recorded run, whether in progress or not.

    Args:
        root: The folder of run records.
        name: The run's name.
        processes: Of `marked_processes`, if several runs are read; by default it is called.

    Raises:
        NoSuchRun: If there is no such run, or it is removed meanwhile.
        NpuRlError: If its run.json can't be read.
    """
    locked = has_lock(root / name)  # before its end is read: that is written while the run is locked
    record = RunRecord.load(root, name)
    marked = marked_processes() if processes is None else processes
    missing: list[str] = []
    with removal_noticed(record.folder):
        found = {pid for mark in record.marks for pid in marked.get(mark, ())}
        alive = tuple(sorted(found.union(record.live_drivers())))
        attempts = tuple(recorded_attempt(attempt, missing) for attempt in record.attempts)
        text = _recipe_text(record.folder, bool(attempts), missing)
    return RecordedRun(
        record,
        _state(record, attempts, alive, locked),
        alive,
        attempts,
        _recipe(text, missing),
        text,
        tuple(missing),
    )


def recorded_runs(root: Path) -> tuple[list[RecordedRun], list[NpuRlError]]:
    """Return all runs in a folder, oldest first, and the errors of unreadable ones; without those removed meanwhile."""
    processes = marked_processes()
    found: list[RecordedRun] = []
    errors: list[NpuRlError] = []
    for folder in _folders(root):
        try:
            found.append(recorded_run(root, folder.name, processes))
        except NoSuchRun:
            continue
        except (NpuRlError, OSError) as error:
            errors.append(unreadable_run(folder, error))
    return sorted(found, key=lambda run: (run.fact("created") or "", run.name)), errors


def _folders(root: Path) -> list[Path]:
    """Return the folders that may be runs. `glob` would leave out what this user may not read."""
    try:
        return sorted(path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError as error:
        if error.errno in NO_FILE:
            return []
        raise


def _first_trained(points: Sequence[Point]) -> int:
    """Return the first step that an attempt trained; one that it only validated is the step that it resumed from."""
    trained = [point.step for point in points if seconds(point.data) is not None]
    return min(trained or [point.step for point in points])


def _changed_since(path: Path, time_: float) -> bool:
    try:
        return path.stat().st_mtime >= time_
    except OSError:
        return False


# -- parts -------------------------------------------------------------------------------------------------


def _state(
    record: RunRecord, attempts: Sequence[RecordedAttempt], alive: tuple[int, ...], was_locked: bool
) -> str:
    if was_locked or record.is_locked:
        return RUNNING
    verdict = _verdict(record)
    if verdict:
        return "done" if verdict["ok"] else "failed"
    found = _rehearsal_state(record, attempts)
    if found is not None:
        return found
    if not attempts:
        return NEW
    last = attempts[-1]
    if last.outcome is not None:
        return last.outcome
    if alive and (last.driver is None or last.driver in alive):
        return RUNNING  # its npu-rl was killed, and the trainer goes on
    host = last.host.get("hostname")
    return UNKNOWN if isinstance(host, str) and host != socket.gethostname() else "killed"


def _rehearsal_state(record: RunRecord, attempts: Sequence[RecordedAttempt]) -> str | None:
    if record.facts.get("rehearsal") is None:
        return None
    return rehearsal_state(record.folder, record.facts, attempts[-1] if attempts else None)


def _verdict(record: RunRecord) -> dict[str, Any]:
    found = (
        optional_object(record.folder / "rehearsal.json") if record.facts.get("rehearsal") is not None else {}
    )
    return found if isinstance(found.get("ok"), bool) else {}


def _recipe_text(folder: Path, expected: bool, missing: list[str]) -> str:
    path = folder / "recipe.yaml"
    try:
        return read_file(path, LARGEST_RECIPE).decode("utf-8", "backslashreplace")
    except (OSError, ValueError) as error:
        if expected:
            missing.append(f"{path}: {unreadable(error)}")
        return ""


def _recipe(text: str, missing: list[str]) -> dict[str, Any]:
    try:
        found = parse_yaml(text) if text else {}
    except ValueError as error:
        missing.append(f"recipe.yaml: {error}")
        return {}
    return found if isinstance(found, dict) else {}
