"""One attempt of a run: its folder, files and outcome."""

from __future__ import annotations

import calendar
import contextlib
import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
DRIVER = "driver.json"
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


class AttemptFolder:
    """The files of an attempt that its runner writes, and others read."""

    folder: Path

    @property
    def driver_log(self) -> Path:
        """Output of the driver."""
        return self.folder / "driver.log"

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON line per step."""
        return self.folder / "metrics.jsonl"

    @property
    def usage(self) -> Path:
        """Folder where patches record their use."""
        return self.folder / "usage"


@dataclass
class Attempt(AttemptFolder):
    """An attempt that this command runs; `outcome` is None until its end."""

    folder: Path
    number: int
    outcome: str | None = None
    secrets: Secrets = field(default=Secrets(), repr=False, compare=False)
    _run_lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False, compare=False)

    @property
    def run_argument(self) -> str:
        """Its run as an argument of `npu-rl runs`, by its folder: from another shell the name may lead elsewhere."""
        return shlex.quote(str(self.folder.parents[1]))

    def record_driver(self, pid: int) -> None:
        """Record the driver's process id and start, which identify it."""
        write_json(self.folder / DRIVER, asdict(Started.now(pid)))

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
    def stacks(self) -> Path:
        """Folder of the stacks that were collected when the run hung."""
        return self.folder / "stacks"

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
                self.outcome = outcome
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
            self.outcome = "failed"
            changed |= {"outcome": "failed", "error": recorded_error(error, self.secrets)}
        write_json(path, {**read_json(path), **changed})


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
