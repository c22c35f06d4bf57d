"""The run record: one folder per run, one folder in it per attempt, readable without npu-rl.

    runs/NAME/
      run.json  lock.json  recipe.yaml  tensorboard/  samples/  checkpoints/
      attempts/1/{command,environment,host,driver,composed,nodes,end}.json, recipe.yaml, driver.log, workers/,
                 metrics.jsonl, usage/, alarms.jsonl, drift.json, drift.patch

Every file is written atomically; the two .jsonl files and the logs grow line by line. Only the owner can access the
folder, and known secrets are masked in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import NO_FILE, read_json
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import NpuRlError, UsageError, WorkspaceError
from npu_rl.common.masking import Secrets, masked_argument, masked_data
from npu_rl.common.process import processes_of, stop_remaining
from npu_rl.training.monitor.metrics import Point, curve
from npu_rl.training.record.attempt import Attempt, attempts_in, now, write_json, write_private
from npu_rl.training.record.other_host import other_host_error, other_host_of
from npu_rl.training.record.record_masking import recorded_environment
from npu_rl.training.record.run_errors import (
    copied_error,
    exists_error,
    name_taken_error,
    no_such_run,
    removal_noticed,
    running_error,
)
from npu_rl.training.record.run_lock import has_lock, is_opened_by, run_lock
from npu_rl.training.record.run_marks import mark_of, marks_of, recorded_mark
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import latest_step, recorded_step
from npu_rl.training.record.settle_killed_run import complete_record
from npu_rl.training.record.temporary_folders import remaining_folders, remove_remaining

if TYPE_CHECKING:
    from psutil import Process

_ID = re.compile(r"[0-9a-f]{32}")
LONGEST_NAME = 100  # characters of a run's name
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


class RunRecord:
    """The record of a run in its folder. Use `create` or `open` to get one."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.name = folder.name  # run.json has the one that it was created with
        self.id: str = facts["id"]
        self.attempts: list[Attempt] = attempts_in(folder)
        self.claim = contextlib.ExitStack()  # of a run that was created locked, until its first attempt
        self._is_claimed = False

    @property
    def mark(self) -> str:
        """Mark of the run's processes and temporary folders: its id, and its folder's inode, unlike a copy's."""
        return mark_of(self.id, self.folder)

    @property
    def marks(self) -> list[str]:
        """The mark, and those of processes that were started through another mount of the folder."""
        return marks_of(self.id, self.folder, (attempt.folder for attempt in self.attempts))

    def processes(self) -> list[int]:
        """Return the run's processes on this host."""
        found = {pid for mark in self.marks for pid in processes_of(mark)}
        return sorted(found.union(self.live_drivers()))

    def live_drivers(self) -> list[int]:
        """Return the drivers on this host by their recorded pids and starts; those of a copied record aren't its own.

        A driver's mark can't be read for a moment after its start.
        """
        marks = self.marks
        begun = (attempt for attempt in self.attempts if attempt.outcome is None and attempt.mark in marks)
        return [pid for attempt in begun if (pid := attempt.live_driver) is not None]

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's files."""
        return self.folder / "tensorboard"

    @property
    def samples(self) -> Path:
        """Folder of sample responses."""
        return self.folder / "samples"

    @property
    def checkpoints(self) -> Path:
        """Folder of the trainer's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def unproven(self) -> str | None:
        """The user's reason for running code that differs from the lock; None if the code is proven."""
        drift = self.facts.get("drift")
        if self.facts.get("proven", True):
            return None
        return str(drift.get("reason")) if isinstance(drift, dict) else "its record does not give the reason"

    def mark_unproven(self, drift: Mapping[str, Any]) -> None:
        """Record in run.json, permanently, that an attempt ran code that differs from the lock."""
        if self.unproven is None:
            self.facts |= {"proven": False, "drift": dict(drift)}
            write_json(self.folder / "run.json", self.facts)

    @property
    def is_incomplete(self) -> bool:
        """Return whether the run is in progress, or its npu-rl was killed here before it completed the record."""
        unfinished = any(attempt.outcome is None for attempt in self.attempts)
        return other_host_of(self.attempts) is None and (unfinished or bool(remaining_folders(self.mark)))

    @property
    def latest_checkpoint(self) -> int | None:
        """The step of the newest checkpoint; None without one, or if its folder is missing."""
        return latest_step(self.checkpoints)

    @property
    def recorded_checkpoint(self) -> int | None:
        """The step of the newest checkpoint according to the trainer."""
        return recorded_step(self.checkpoints)

    @property
    def is_locked(self) -> bool:
        """Return whether another process has locked the run, as during an attempt."""
        return has_lock(self.folder)

    @property
    def goes_on(self) -> bool:
        """Return whether an attempt is in progress on this host, also one whose npu-rl was killed."""
        pids = self.processes()
        return self.is_locked or (bool(pids) and self._driver_is_alive(pids))

    @classmethod
    def create(
        cls,
        root: Path,
        name: str,
        facts: Mapping[str, Any],
        *,
        lock: bytes | None = None,
        secrets: Secrets = Secrets(),  # noqa: B008  it can't be changed
        resume_below: int | None = None,
        claimed: bool = False,
    ) -> RunRecord:
        """Create the record of a new run in the folder `root`, atomically.

        Args:
            facts: JSON data for run.json; `id`, `name` and `created` are added.
            lock: The bytes of the workspace's lock.
            secrets: Masked in the facts.
            resume_below: Step below which a checkpoint of a run that exists can be continued from; 0 if none can.
                None is any.
            claimed: Whether the run is locked from its first moment until the end of its first attempt.

        Raises:
            UsageError: For an invalid name.
            RunNameTaken: If the run exists; if that one was killed, its record is completed.
            RunGoesOn: If the run exists and goes on.
        """
        _check_name(name)
        folder = root / name
        if (folder / "run.json").is_file():
            there = cls.load(root, name)
            if there.is_incomplete:
                there = cls.open(root, name)
            raise exists_error(name, folder, there._resumable(resume_below))
        body = {
            **masked_data(_with_arguments(facts), known=secrets),
            "name": name,
            "id": uuid.uuid4().hex,
            "created": now(),
        }
        staged = root / f".{name}.{os.urandom(6).hex()}"
        with contextlib.ExitStack() as claim, disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            staged.mkdir(mode=0o700)
            try:
                for part in ("tensorboard", "samples", "checkpoints", "attempts"):
                    (staged / part).mkdir(mode=0o700)
                write_json(staged / "run.json", body)
                if lock is not None:
                    write_private(staged / "lock.json", lock)
                if claimed:
                    claim.enter_context(run_lock(staged, lambda: running_error(name, folder, [])))
                try:
                    staged.rename(folder)  # fails on a folder with anything in it, and on a file
                except OSError as error:
                    if not os.path.lexists(folder):
                        raise
                    raise name_taken_error(folder, name) from error
            finally:
                remove_tree(staged)
            record = cls(folder, body)
            record.claim, record._is_claimed = claim.pop_all(), claimed
            return record

    @classmethod
    def open(cls, root: Path, name: str) -> RunRecord:
        """Open a run that is not in progress.

        If npu-rl was killed during its last attempt, that attempt is completed as killed from its files, and
        its temporary folders are removed.

        Raises:
            RunMayGoOnElsewhere: If it was begun on another host, and has no recorded end.
            NpuRlError: If the run does not exist, or if it is in progress (with the process ids).
        """
        record = cls.load(root, name)
        with record.settled():
            return record

    @classmethod
    def load(cls, root: Path, name: str) -> RunRecord:
        """Read the record of a run, in progress or not, without changing it."""
        _check_name(name)
        folder = root / name
        try:
            facts = dict(read_json(folder / "run.json"))
            if not _ID.fullmatch(facts["id"]):
                raise ValueError("Its id is invalid.")
            return cls(folder, facts)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise no_such_run(root, name) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            if isinstance(error, OSError) and error.errno not in NO_FILE:
                raise
            raise NpuRlError(
                f"The record of run {name} can't be read",
                where=str(folder / "run.json"),
                why=str(error),
                hint="Move the folder away, or choose another name with name=…",
            ) from error

    def begin_attempt(
        self,
        command: list[str],
        environment: Mapping[str, str],
        host: Mapping[str, Any],
        recipe_text: str,
        *,
        inherited: Mapping[str, str] | None = None,
        secrets: Secrets | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Attempt:
        """Create the next attempt with its folder and files, and lock the run until its `end`.

        The run's recipe.yaml is that of the latest attempt.

        Args:
            environment: The driver's; only variables that differ from `inherited`, or that affect training, are
                recorded.
            inherited: By default the environment of this process.
            secrets: Masked in all files, also in those of the driver; by default those of the environment.
            details: Further keys of command.json.

        Raises:
            NpuRlError: If the run is in progress.
        """
        known = Secrets.of(environment) if secrets is None else secrets
        with self.claim.pop_all() as held:
            if not self._is_claimed:
                held.enter_context(self.locked())
            self._is_claimed = False
            self.attempts = attempts_in(self.folder)  # another process may have made one since
            self._complete_attempts()
            number = self.attempts[-1].number + 1 if self.attempts else 1
            folder = self.folder / "attempts" / str(number)
            with disk_errors(folder):
                self.folder.chmod(0o700)  # records of earlier versions were for all to read
                folder.mkdir(mode=0o700, parents=True)
                for part in ("workers", "usage"):
                    (folder / part).mkdir(mode=0o700)
                shown = recorded_environment(environment, os.environ if inherited is None else inherited)
                begun = {
                    "command": [known.mask(masked_argument(argument)) for argument in command],
                    "started": now(),
                    "launcher": os.getpid(),
                    **recorded_mark(self.id, self.folder),
                    **masked_data(details or {}, known=known),
                }
                write_json(folder / "command.json", begun)
                write_json(folder / "environment.json", masked_data(shown, known=known))
                write_json(folder / "host.json", dict(host))
                for place in (folder, self.folder):
                    write_private(place / "recipe.yaml", known.mask(recipe_text).encode())
            attempt = Attempt(folder, number, secrets=known, _run_lock=held.pop_all())
        self.attempts.append(attempt)
        return attempt

    def curve(self) -> list[Point]:
        """Return the metrics of all attempts by step, merged by `metrics.curve`."""
        return curve(self.folder)

    def is_held_by(self, process: Process) -> bool:
        """Return whether a process has the run's lock file open, like the npu-rl of an attempt."""
        return is_opened_by(self.folder, process)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run, unless the file system has no locks. Raises NpuRlError if it is locked, or was removed."""
        with removal_noticed(self.folder):
            self._require_folders()
            with run_lock(self.folder, self._busy_error):
                yield

    @contextlib.contextmanager
    def settled(self, *, ended_on: str | None = None) -> Iterator[None]:
        """Lock a run that is not in progress, after completing its record. Raises the same errors as `open`.

        Args:
            ended_on: Another host, where the run has ended without a recorded end.
        """
        with self.locked():
            self.attempts = attempts_in(self.folder)  # another process may have ended one since
            self._complete_attempts(ended_on)
            yield

    def _complete_attempts(self, ended_on: str | None = None) -> None:
        """Complete the record of attempts whose npu-rl was killed.

        Processes that are left without a driver, such as Ray's agents, are stopped first.

        Raises:
            RunMayGoOnElsewhere: If the last one was begun on another host than `ended_on`, and has no end.
            NpuRlError: If the driver is alive, or if it may be: a process has the run's id and another mark.
        """
        host = other_host_of(self.attempts)
        if host is not None and host != ended_on:
            raise other_host_error(self.name, self.folder, host)
        pids = self.processes()
        if pids and self._driver_is_alive(pids):
            raise self._running_error(pids)
        unfinished = [attempt for attempt in self.attempts if attempt.outcome is None]
        if unfinished and (others := set(processes_of(self.id)) - set(pids)):
            raise copied_error(self.name, self.folder, sorted(others))
        if pids:
            self.stop_processes()
        for attempt in unfinished:
            complete_record(attempt, self.mark, Secrets.of(os.environ))
        for mark in self.marks:
            remove_remaining(mark)

    def stop_processes(self, grace: float = 5.0) -> list[int]:
        """End the run's processes, as `stop_remaining` does. Returns those that needed SIGKILL."""
        return [pid for mark in self.marks for pid in stop_remaining(mark, grace)]

    def _driver_is_alive(self, pids: list[int]) -> bool:
        """Return whether one of the run's processes is, or may be, its driver."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.outcome is not None or not last.driver_log.exists():
            return False  # the log is created before the driver starts
        return last.driver is None or last.driver in pids

    def _resumable(self, below: int | None) -> int | None:
        """Return the step of the newest checkpoint if it is below `below` (None: any), else None."""
        done = self.latest_checkpoint
        return None if done is not None and below is not None and done >= below else done

    def _busy_error(self) -> NpuRlError:
        launcher = self.attempts[-1].launcher if self.attempts else None
        return self._running_error([launcher] if launcher else [])

    def _running_error(self, pids: list[int]) -> NpuRlError:
        return running_error(self.name, self.folder, pids)

    def _require_folders(self) -> None:
        """Raise WorkspaceError if a folder of the record is a link."""
        for folder in (self.folder, self.folder / "attempts", *(attempt.folder for attempt in self.attempts)):
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise WorkspaceError(
                    f"The record of run {self.name} has a symbolic link in place of a folder",
                    where=str(folder),
                    why="npu-rl does not write a record through symbolic links.",
                    hint="Replace it with the folder itself, or choose another name with name=…",
                )


# -- the folder ----------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"Invalid run name {name!r}",
            why="A run name has up to 100 letters, digits, `.`, `_` and `-`, and begins with a letter or digit.",
            hint="Choose another with name=…",
        )


def _with_arguments(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with secrets masked in the KEY=VALUE arguments."""
    details = dict(facts)
    if "overrides" in details:
        details["overrides"] = [masked_argument(argument) for argument in details["overrides"]]
    return details
