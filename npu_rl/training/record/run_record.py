"""The run record: one folder per run, one folder in it per attempt, readable without npu-rl.

    runs/NAME/
      run.json  lock.json  recipe.yaml  tensorboard/  samples/  checkpoints/
      attempts/1/{command,environment,host,driver,composed,nodes,end}.json, recipe.yaml, driver.log, workers/,
                 metrics.jsonl, usage/, alarms.jsonl, drift.json, drift.patch

run.json has what all attempts share, command.json what one of them ran: recipe, overrides, digest and goal. An attempt
without end.json is running while the run is locked; else its npu-rl was killed, and its processes with it.
Every file is written atomically; the two .jsonl files and the logs grow line by line. Only the owner can access the
folder, and known secrets are masked in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import NpuRlError, UsageError
from npu_rl.common.masking import Secrets, masked_argument, masked_data
from npu_rl.training.monitor.metrics import Point, curve
from npu_rl.training.record.attempt import (
    Attempt,
    Started,
    damaged,
    now,
    read_object,
    write_json,
    write_private,
)
from npu_rl.training.record.record_masking import mask_files, recorded_environment
from npu_rl.training.record.recorded_attempt import RecordedAttempt, recorded_attempts
from npu_rl.training.record.run_errors import (
    exists_error,
    name_taken_error,
    no_such_run,
    other_host_error,
    running_error,
)
from npu_rl.training.record.run_lock import has_lock, run_lock
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import latest_step, recorded_step

_FOLDERS = ("tensorboard", "samples", "checkpoints")
_ID = re.compile(r"[0-9a-f]{32}")
LONGEST_NAME = 100  # characters of a run's name
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


class RunRecord:
    """The record of a run in its folder. Use `create` or `load` to get one.

    Attributes:
        tensorboard, samples, checkpoints: Folders that the trainer writes to.
        mark: Mark of the processes and temporary folders that this command starts for the run.
        claim: Keeps a run that was created locked so, until the end of its first attempt.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.name = folder.name  # run.json has the one that it was created with
        self.tensorboard, self.samples, self.checkpoints = (folder / name for name in _FOLDERS)
        self.id: str = facts["id"]
        self.mark = uuid.uuid4().hex
        self.claim = contextlib.ExitStack()
        self._holds_lock = False

    @property
    def attempts(self) -> list[RecordedAttempt]:
        """The attempts on disk, in order. Raises NpuRlError if one is damaged."""
        return recorded_attempts(self.folder)

    @property
    def unproven(self) -> str | None:
        """The user's reason for the first attempt with code that differs from the lock; None if all code is proven."""
        begun = [self.facts, *(attempt.begun for attempt in self.attempts)]
        return next((str(one["drift"]["reason"]) for one in begun if "drift" in one), None)

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
        """Return whether a process has locked the run, as during an attempt."""
        return has_lock(self.folder)

    @property
    def other_host(self) -> str | None:
        """The other host where the last attempt, or a run without one, was begun, if it has no end; else None.

        The lock does not tell whether it runs there on shared disks whose locks hold on one host only: NFS with
        nolock, Lustre without -o flock.
        """
        last = self.attempts[-1:]
        if last and last[0].outcome is not None:
            return None
        host = str((last[0].host if last else self.facts).get("hostname"))
        return None if host == socket.gethostname() else host

    @property
    def npu_rl_process(self) -> Started:
        """The npu-rl that runs it while it is locked. Raises NpuRlError if its record is damaged."""
        for attempt in self.attempts[-1:]:
            if attempt.outcome is None:
                return attempt.npu_rl_process
        return Started.of(self.facts.get("npu_rl"), self.folder)

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
            facts: JSON data for run.json; `id`, `name`, `created`, `hostname` and `npu_rl` are added.
            lock: The bytes of the workspace's lock.
            secrets: Masked in the facts.
            resume_below: Step below which a checkpoint of a run that exists can be continued from; 0 if none can.
                None is any.
            claimed: Whether the run is locked from its first moment until the end of its first attempt.

        Raises:
            UsageError: For an invalid name.
            RunNameTaken: If the run exists.
            RunGoesOn: If the run exists and goes on.
        """
        _check_name(name)
        folder = root / name
        if (folder / "run.json").is_file():
            there = cls.load(root, name)
            there.require_ended()
            raise exists_error(name, folder, there._resumable(resume_below))
        body = {
            **masked_start(facts, secrets),
            "name": name,
            "id": uuid.uuid4().hex,
            "created": now(),
            "hostname": socket.gethostname(),
            "npu_rl": asdict(Started.now(os.getpid())),
        }
        staged = root / f".{name}.{os.urandom(6).hex()}"
        with contextlib.ExitStack() as claim, disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            staged.mkdir(mode=0o700)
            try:
                for part in (*_FOLDERS, "attempts"):
                    (staged / part).mkdir(mode=0o700)
                write_json(staged / "run.json", body)
                if lock is not None:
                    write_private(staged / "lock.json", lock)
                record = cls(folder, body)
                if claimed:
                    claim.enter_context(record._locked_at(staged))
                try:
                    staged.rename(folder)  # fails on a folder with anything in it, and on a file
                except OSError as error:
                    if not os.path.lexists(folder):
                        raise
                    raise name_taken_error(folder, name) from error
            finally:
                remove_tree(staged)
            record.claim = claim.pop_all()
            return record

    @classmethod
    def load(cls, root: Path, name: str) -> RunRecord:
        """Read the record of a run, in progress or not.

        Raises:
            NoSuchRun: If it does not exist.
            NpuRlError: If its run.json is damaged.
        """
        _check_name(name)
        file = root / name / "run.json"
        try:
            file.lstat()
        except OSError as error:
            if error.errno in NO_FILE:
                raise no_such_run(root, name) from error
            raise damaged(file, error) from error
        facts = read_object(file)
        if not _ID.fullmatch(str(facts.get("id"))):
            raise damaged(file, "Its id is invalid.")
        return cls(root / name, facts)

    def require_ended(self, ended_on: str | None = None) -> None:
        """Raise an error if the run is in progress, or may be.

        Args:
            ended_on: Another host, where the user knows that it has ended.

        Raises:
            RunGoesOn: If it is locked, or was begun on another host and has no end.
        """
        if self.is_locked:
            raise self._running_error()
        host = self.other_host
        if host is not None and host != ended_on:
            raise other_host_error(self.name, self.folder, host)

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
            details: Further keys of command.json: what the attempt runs.

        Raises:
            NpuRlError: If the run is in progress.
        """
        known = Secrets.of(environment) if secrets is None else secrets
        with self.claim.pop_all() as held:
            held.enter_context(self.locked())
            before = self.attempts
            for killed in (attempt for attempt in before if attempt.outcome is None):
                mask_files(killed.folder, known)  # which an attempt's end does
            number = before[-1].number + 1 if before else 1
            folder = self.folder / "attempts" / str(number)
            staged = folder.with_name(f".{number}.{os.urandom(6).hex()}")
            with disk_errors(folder):
                for path in (staged, staged / "workers", staged / "usage"):
                    path.mkdir(mode=0o700)
                shown = recorded_environment(environment, os.environ if inherited is None else inherited)
                begun = {
                    "command": [known.mask(masked_argument(argument)) for argument in command],
                    "started": now(),
                    "npu_rl": asdict(Started.now(os.getpid())),
                    **masked_start(details or {}, known),
                }
                write_json(staged / "command.json", begun)
                write_json(staged / "environment.json", masked_data(shown, known=known))
                write_json(staged / "host.json", {"hostname": socket.gethostname(), **host})
                for place in (staged, self.folder):
                    write_private(place / "recipe.yaml", known.mask(recipe_text).encode())
                staged.rename(folder)
            return Attempt(folder, number, secrets=known, _run_lock=held.pop_all())

    def curve(self) -> list[Point]:
        """Return the metrics of all attempts by step, merged by `metrics.curve`."""
        return curve(self.folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run, unless this object has locked it, or the file system has no locks.

        Raises NpuRlError if another has locked it.
        """
        if self._holds_lock:
            yield
            return
        with self._locked_at(self.folder):
            yield

    @contextlib.contextmanager
    def _locked_at(self, folder: Path) -> Iterator[None]:
        with run_lock(folder, self._running_error):
            self._holds_lock = True
            try:
                yield
            finally:
                self._holds_lock = False

    def discard(self) -> None:
        """Remove a run in which nothing was begun, so that its name is free again."""
        remove_tree(self.folder)

    def _resumable(self, below: int | None) -> int | None:
        """Return the step of the newest checkpoint if it is below `below` (None: any), else None."""
        done = self.latest_checkpoint
        return None if done is not None and below is not None and done >= below else done

    def _running_error(self) -> NpuRlError:
        return running_error(self.name, self.folder, self.npu_rl_process.pid)


def masked_start(facts: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """Return what a run or an attempt starts with, with secrets masked, also in its KEY=VALUE arguments."""
    given = [masked_argument(argument) for argument in facts.get("overrides", ())]
    shown = {**facts, "overrides": given} if "overrides" in facts else facts
    return dict(masked_data(shown, known=secrets))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"Invalid run name {name!r}",
            why="A run name has up to 100 letters, digits, `.`, `_` and `-`, and begins with a letter or digit.",
            hint="Choose another with name=…",
        )
