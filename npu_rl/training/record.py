"""The run record: one folder per run, one folder in it per attempt, readable without npu-rl.

    runs/NAME/
      run.json  lock.json  recipe.yaml  tensorboard/  samples/  checkpoints/
      attempts/1/{command,environment,host,end}.json, recipe.yaml, driver.log, workers/, metrics.jsonl,
                 usage/, alarms.jsonl

Every file is written whole or not at all; the two .jsonl files and the logs grow line by line.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_rl.disk import disk_errors, write_atomically
from npu_rl.errors import NpuRlError, UsageError
from npu_rl.training.attempt import Attempt, attempts_in, now, write_json
from npu_rl.training.masking import command_to_write, environment_to_write
from npu_rl.training.metrics import Point, curve
from npu_rl.training.process import processes_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK = ".lock"  # held while an attempt lasts; the kernel frees it however npu-rl ends


class RunRecord:
    """A run's folder. Make one with `create`, find one with `open`."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.name: str = facts["name"]
        self.id: str = facts["id"]
        self.attempts: list[Attempt] = attempts_in(folder)

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def samples(self) -> Path:
        return self.folder / "samples"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @classmethod
    def create(
        cls, root: Path, name: str, facts: Mapping[str, Any], *, lock: bytes | None = None
    ) -> RunRecord:
        """Begin the record of a new run in the folder `root`; of two at once, one gets the name.

        facts: anything JSON can hold, for run.json; `id`, `name` and `created` are added. lock: the bytes of
        the workspace's lock. Raises UsageError for a name that can't be one, NpuRlError if the run is there.
        """
        _check_name(name)
        folder = root / name
        whole = {**facts, "name": name, "id": uuid.uuid4().hex, "created": now()}
        staged = root / f".{name}.{os.urandom(6).hex()}"
        with disk_errors(root):
            staged.mkdir(parents=True)
            try:
                for part in ("tensorboard", "samples", "checkpoints", "attempts"):
                    (staged / part).mkdir()
                write_json(staged / "run.json", whole)
                if lock is not None:
                    write_atomically(staged / "lock.json", lock)
                try:
                    staged.rename(folder)  # fails on a folder with anything in it, and on a file
                except OSError as error:
                    if not os.path.lexists(folder):
                        raise
                    raise _exists(folder, name) from error
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        return cls(folder, whole)

    @classmethod
    def open(cls, root: Path, name: str) -> RunRecord:
        """A run that is there and not going on.

        If npu-rl itself was killed in its last attempt, that attempt is now written down as killed.
        Raises NpuRlError if there is no such run, or if it lives (with the processes' ids).
        """
        record = cls.look(root, name)
        with record._alone():
            record._settle()
        return record

    @classmethod
    def look(cls, root: Path, name: str) -> RunRecord:
        """A run as it lies there, going on or not; nothing is changed."""
        _check_name(name)
        folder = root / name
        try:
            facts = json.loads((folder / "run.json").read_bytes())
            return cls(folder, dict(facts))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _no_such_run(root, name) from error
        except (ValueError, TypeError, KeyError) as error:
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
    ) -> Attempt:
        """The next attempt, with its folder and files; the run is this process's until its `end`.

        environment: the driver's. Written are the variables that differ from `inherited` (by default this
        process's own) and those known to shape training, without secrets. The run's recipe.yaml is that
        of the latest attempt. Raises NpuRlError if the run lives.
        """
        held = contextlib.ExitStack()
        held.enter_context(self._alone())
        with held:
            self.attempts = attempts_in(self.folder)  # another process may have made one since
            self._settle()
            number = self.attempts[-1].number + 1 if self.attempts else 1
            folder = self.folder / "attempts" / str(number)
            with disk_errors(folder):
                folder.mkdir(parents=True)
                for part in ("workers", "usage"):
                    (folder / part).mkdir()
                shown = environment_to_write(environment, os.environ if inherited is None else inherited)
                write_json(
                    folder / "command.json",
                    {"command": command_to_write(command), "started": now(), "launcher": os.getpid()},
                )
                write_json(folder / "environment.json", shown)
                write_json(folder / "host.json", dict(host))
                for place in (folder, self.folder):
                    write_atomically(place / "recipe.yaml", recipe_text.encode())
            attempt = Attempt(folder, number, _held=held.pop_all())
        self.attempts.append(attempt)
        return attempt

    def curve(self) -> list[Point]:
        """The points of all attempts (see `metrics.curve`)."""
        return curve(self.folder)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the run; raise if another holds it. On a file system without locks nobody does."""
        path = self.folder / _LOCK
        with disk_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    launcher = _launcher(self.attempts[-1].folder) if self.attempts else None
                    raise self._lives([launcher] if launcher else []) from error
            yield
        finally:
            os.close(handle)

    def _settle(self) -> None:
        """Write down the end of an attempt whose npu-rl can't do it any more; raise if its driver lives on."""
        unfinished = [attempt for attempt in self.attempts if attempt.outcome is None]
        if not unfinished:
            return
        pids = processes_of(self.id)
        if pids:
            raise self._lives(pids)
        for attempt in unfinished:
            attempt.end("killed", None)

    def _lives(self, pids: list[int]) -> NpuRlError:
        them = " ".join(map(str, pids))
        return NpuRlError(
            f"Run {self.name} is going on",
            where=f"{self.folder}" + (f", pid {them}" if pids else ""),
            why="Processes of it live on this machine." if pids else "Another npu-rl holds its folder.",
            hint="Wait for its end"
            + (f" or stop it (`kill -INT {them}`)" if pids else "")
            + "; or choose another name with name=…",
        )


# -- the folder ----------------------------------------------------------------------------------------


def _launcher(attempt: Path) -> int | None:
    """The npu-rl that began an attempt."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((attempt / "command.json").read_bytes())["launcher"])
    return None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} can't be the name of a run",
            why="It becomes a folder: letters, digits, `.`, `_` and `-`, up to 100, the first a letter or digit.",
            hint="Choose another with name=…",
        )


def _exists(folder: Path, name: str) -> NpuRlError:
    if not (folder / "run.json").is_file():
        return NpuRlError(
            f"There is something else where run {name} would be recorded",
            where=str(folder),
            hint="Move it away, or choose another name with name=…",
        )
    return NpuRlError(
        f"There is a run {name} already",
        where=str(folder),
        why="A run's record is never overwritten.",
        hint="Go on with it by --resume, or choose another name with name=…",
    )


def _no_such_run(root: Path, name: str) -> NpuRlError:
    known = sorted(path.parent.name for path in root.glob("*/run.json"))
    near = difflib.get_close_matches(name, known, 3) or known[:5]
    return NpuRlError(
        f"There is no run {name}",
        where=str(root),
        hint="There are: " + ", ".join(near) if near else "Start it without --resume.",
    )
