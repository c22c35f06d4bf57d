"""One attempt of a run: its folder, files and outcome."""

from __future__ import annotations

import calendar
import contextlib
import json
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.disk import disk_errors, private, write_atomically
from npu_rl.common.errors import NpuRlError, error_texts
from npu_rl.common.masking import Secrets, masked_text
from npu_rl.common.process import start_mark
from npu_rl.training.record.record_masking import mask_files

LARGEST_RECIPE = 4 << 20  # bytes
_DRIVER = "driver.json"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
OUTCOMES = ("done", "failed", "stopped")


@dataclass(frozen=True)
class Started:
    """A process on the host of an attempt, known by its id and its start, since ids are used again."""

    pid: int
    started: str | None

    @classmethod
    def now(cls, pid: int) -> Started:
        """Return a process that is alive."""
        return cls(pid, start_mark(pid))

    @classmethod
    def of(cls, data: Any, path: Path) -> Started:
        """Return a recorded process. Raises NpuRlError if the record in the file is damaged."""
        try:
            return cls(int(data["pid"]), str(data["started"]))
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, f"Invalid process: {data}") from error

    @property
    def is_alive(self) -> bool:
        """Return whether it lives, if its host is this one."""
        return self.started is not None and start_mark(self.pid) == self.started


@dataclass
class Attempt:
    """One attempt of a run; `outcome` is None while it is running."""

    folder: Path
    number: int
    outcome: str | None = None
    code: int | None = None
    driver_code: int | None = None
    secrets: Secrets = field(default=Secrets(), repr=False, compare=False)
    _run_lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False, compare=False)

    @property
    def run_argument(self) -> str:
        """Its run as an argument of `npu-rl runs`, by its folder: from another shell the name may lead elsewhere."""
        return shlex.quote(str(self.folder.parents[1]))

    @property
    def driver_log(self) -> Path:
        """Output of the driver."""
        return self.folder / "driver.log"

    @cached_property
    def begun(self) -> dict[str, Any]:
        """What its start recorded: command, time, npu-rl's process, recipe, overrides and goal.

        Raises:
            NpuRlError: If that is missing or damaged.
        """
        return read_object(self.folder / "command.json")

    @property
    def host_name(self) -> str:
        """Name of the host where npu-rl ran it. Raises NpuRlError if that is missing or damaged."""
        return str(read_object(self.folder / "host.json").get("hostname"))

    @property
    def npu_rl_process(self) -> Started:
        """The npu-rl that began it. Raises NpuRlError if its record is damaged."""
        return Started.of(self.begun.get("npu_rl"), self.folder / "command.json")

    @property
    def driver(self) -> Started | None:
        """Its driver; None if none was started. Raises NpuRlError if its record is damaged."""
        path = self.folder / _DRIVER
        return Started.of(read_object(path), path) if path.exists() else None

    def record_driver(self, pid: int) -> None:
        """Record the driver's process id and start, which identify it."""
        write_json(self.folder / _DRIVER, asdict(Started.now(pid)))

    @property
    def workers(self) -> Path:
        """Folder of the workers' logs."""
        return self.folder / "workers"

    @property
    def nodes(self) -> Path:
        """Report of the nodes of the run."""
        return self.folder / "nodes.json"

    @property
    def lost_nodes(self) -> Path:
        """Nodes that the Ray cluster had lost when the attempt ended."""
        return self.folder / "lost-nodes.json"

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON line per step."""
        return self.folder / "metrics.jsonl"

    @property
    def stacks(self) -> Path:
        """Folder of the stacks that were collected when the run hung."""
        return self.folder / "stacks"

    @property
    def usage(self) -> Path:
        """Folder where patches record their use."""
        return self.folder / "usage"

    @property
    def alarms(self) -> Path:
        """Alarms, one JSON line each."""
        return self.folder / "alarms.jsonl"

    def add_alarm(self, alarm: Mapping[str, Any]) -> None:
        """Append an alarm with the current time."""
        line = json.dumps({"time": round(time.time(), 3), **alarm}, ensure_ascii=False) + "\n"
        with disk_errors(self.alarms), open(self.alarms, "ab", opener=private) as file:
            file.write(line.encode())

    def close(
        self,
        outcome: str,
        driver_code: int | None,
        code: int | None = None,
        *,
        signal: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Mask the secrets, then record the outcome even if that fails, such as on a full disk.

        The arguments are those of `end`; the command's exit code is by default the driver's.
        """
        try:
            with disk_errors(self.folder):
                mask_files(self.folder, self.secrets)
        finally:
            own = driver_code if code is None else code
            self.end(outcome, own, driver_code=driver_code, signal=signal, error=error)

    def end(
        self,
        outcome: str,
        code: int | None,
        *,
        driver_code: int | None = None,
        signal: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Record the outcome and unlock the run. Only the first call has an effect.

        Args:
            outcome: Done, failed, or stopped (by the user or an alarm).
            code: The exit code of the command that ran the attempt.
            driver_code: The driver's exit status.
            signal: The signal that npu-rl received.
            error: What ended it, if no log has that.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f"{outcome!r} is not one of {', '.join(OUTCOMES)}")
        try:
            if self.outcome is None:
                self.outcome, self.code, self.driver_code = outcome, code, driver_code
                ended = {"outcome": outcome, "code": code, "driver_code": driver_code}
                name = {} if signal is None else {"signal": Signals(signal).name}
                why = {} if error is None else {"error": recorded_error(error, self.secrets)}
                write_json(self.folder / "end.json", {**ended, **name, **why, "ended": now()})
        finally:
            self._run_lock.close()

    def fall_short(self, error: NpuRlError) -> None:
        """Record the error of an ended attempt that failed, or whose result is not the recipe's.

        The exit code of the command is then the error's. An attempt that was stopped keeps its outcome.
        """
        path = self.folder / "end.json"
        changed: dict[str, Any] = {"code": error.exit_code}
        if self.outcome in ("done", "failed"):
            changed |= {"outcome": "failed", "error": recorded_error(error, self.secrets)}
        self.outcome, self.code = changed.get("outcome", self.outcome), error.exit_code
        write_json(path, {**read_json(path), **changed})


def attempts_in(folder: Path) -> list[Attempt]:
    """Return the attempts on disk, in order. Raises NpuRlError if the end of one is damaged."""
    numbers = sorted(int(p.name) for p in (folder / "attempts").glob("[1-9]*") if _NUMBER.fullmatch(p.name))
    return [_attempt(folder / "attempts" / str(number), number) for number in numbers]


def _attempt(folder: Path, number: int) -> Attempt:
    end = read_object(folder / "end.json", optional=True)
    return Attempt(folder, number, end.get("outcome"), end.get("code"), end.get("driver_code"))


def read_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object of a record.

    Args:
        optional: Whether the file may be missing; then an empty object is returned.

    Raises:
        NpuRlError: If the file is missing or damaged.
    """
    try:
        found = read_json(path)
    except FileNotFoundError as error:
        if optional:
            return {}
        raise damaged(path, "It is missing.") from error
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if not isinstance(found, dict):
        raise damaged(path, "It is not a JSON object.")
    return found


def damaged(path: Path, why: object) -> NpuRlError:
    """Return the error for a file of a record that can't be read."""
    text = why.strerror if isinstance(why, OSError) and why.strerror else str(why)
    return NpuRlError("The record of a run can't be read", where=str(path), why=text)


def recorded_error(error: Exception, secrets: Secrets) -> dict[str, str]:
    """Return an error for the record (what, where, why, hint), with secrets masked."""
    return {name: secrets.mask(masked_text(text)) for name, text in error_texts(error).items()}


def dump(value: object) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of the record atomically, with mode 600."""
    write_private(path, dump(value).encode())


def write_private(path: Path, data: bytes) -> None:
    """Write a file of the record atomically, with mode 600."""
    with disk_errors(path):
        write_atomically(path, data)
        path.chmod(0o600)


def now(seconds: float | None = None) -> str:
    """Return a time in UTC as text.

    Args:
        seconds: Since the epoch, by default now.
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def seconds_of(text: str) -> float:
    """Parse a time written by `now`, in seconds since the epoch. Raises ValueError for other text."""
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
