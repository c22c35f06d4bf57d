"""One attempt of a run: its folder, files and outcome."""

from __future__ import annotations

import calendar
import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

from npu_rl.common.bounded import NO_FILE, read_json
from npu_rl.common.disk import disk_errors, private, write_atomically
from npu_rl.common.errors import NpuRlError, error_texts
from npu_rl.common.masking import Secrets, masked_text
from npu_rl.common.process import start_mark
from npu_rl.training.monitor.metrics import read_metrics
from npu_rl.training.record.record_masking import mask_files

LARGEST_RECIPE = 4 << 20  # bytes
_DRIVER = "driver.json"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
OUTCOMES = ("done", "failed", "stopped", "killed")


@dataclass
class Attempt:
    """One attempt of a run; `outcome` is None while it is running."""

    folder: Path
    number: int
    outcome: str | None = None
    code: int | None = None
    driver_code: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    secrets: Secrets = field(default=Secrets(), repr=False, compare=False)
    _run_lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False, compare=False)

    @property
    def run_name(self) -> str:
        """The name of its run."""
        return self.folder.parents[1].name

    @property
    def driver_log(self) -> Path:
        """Output of the driver."""
        return self.folder / "driver.log"

    @property
    def driver(self) -> int | None:
        """The driver's process id; None if it was not started or not recorded."""
        try:
            return int(read_json(self.folder / _DRIVER)["pid"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    @property
    def live_driver(self) -> int | None:
        """The driver's process id if that process is alive on this host; None otherwise, also if another has its id."""
        pid = self.driver
        if pid is None or pid <= 0:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            started = read_json(self.folder / _DRIVER)["started"]
            return pid if started is not None and started == start_mark(pid) else None
        return None

    @property
    def launcher(self) -> int | None:
        """The process id of the npu-rl that started the attempt; None if it was not recorded."""
        try:
            return int(read_json(self.folder / "command.json")["launcher"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    @property
    def mark(self) -> str | None:
        """The mark that the attempt's processes inherit; None if it was not recorded."""
        try:
            return str(read_json(self.folder / "command.json")["mark"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def record_driver(self, pid: int) -> None:
        """Record the driver's process id and start, which identify it."""
        write_json(self.folder / _DRIVER, {"pid": pid, "started": start_mark(pid)})

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

    def mask_secrets(self, secrets: Secrets | None = None) -> None:
        """Mask the secrets in the files of the driver and its workers. The driver must have exited.

        Args:
            secrets: By default those that the attempt began with.
        """
        with disk_errors(self.folder):
            mask_files(self.folder, self.secrets if secrets is None else secrets)

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
            self.mask_secrets()
        finally:
            own = driver_code if code is None else code
            self.end(outcome, own, driver_code=driver_code, signal=signal, error=error)

    def end(
        self,
        outcome: str,
        code: int | None,
        first_step: int | None = None,
        last_step: int | None = None,
        *,
        driver_code: int | None = None,
        signal: int | None = None,
        ended: float | None = None,
        error: Exception | None = None,
    ) -> None:
        """Record the outcome and unlock the run. Only the first call has an effect.

        Args:
            outcome: Done, failed, stopped (by the user or an alarm) or killed (npu-rl was; its driver may have
                continued).
            code: The exit code of the command that ran the attempt; None if it was killed.
            driver_code: The driver's exit status.
            first_step, last_step: By default those of metrics.jsonl.
            signal: The signal that npu-rl received.
            ended: Seconds since the epoch, by default now.
            error: What ended it, if no log has that.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f"{outcome!r} is not one of {', '.join(OUTCOMES)}")
        try:
            if self.outcome is None:
                steps = [point.step for point in read_metrics(self.metrics)]
                self.first_step = min(steps, default=None) if first_step is None else first_step
                self.last_step = max(steps, default=None) if last_step is None else last_step
                self.outcome, self.code, self.driver_code = outcome, code, driver_code
                name = {} if signal is None else {"signal": Signals(signal).name}
                why = {} if error is None else {"error": recorded_error(error, self.secrets)}
                write_json(self.folder / "end.json", {**self._end(), **name, **why, "ended": now(ended)})
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

    def _end(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "code": self.code,
            "driver_code": self.driver_code,
            "first_step": self.first_step,
            "last_step": self.last_step,
        }


def attempts_in(folder: Path) -> list[Attempt]:
    """Return the attempts on disk, in order."""
    numbers = sorted(int(p.name) for p in (folder / "attempts").glob("[1-9]*") if _NUMBER.fullmatch(p.name))
    return [_attempt(folder / "attempts" / str(number), number) for number in numbers]


def _attempt(folder: Path, number: int) -> Attempt:
    attempt = Attempt(folder, number)
    with contextlib.suppress(ValueError, AttributeError):
        try:
            end = read_json(folder / "end.json")
        except OSError as error:
            if error.errno in NO_FILE:
                return attempt
            raise
        attempt.code, attempt.first_step = end.get("code"), end.get("first_step")
        attempt.driver_code = end.get("driver_code", attempt.code)  # 0.1.0 recorded the driver's alone
        attempt.last_step, attempt.outcome = end.get("last_step"), end.get("outcome")
    return attempt


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


def seconds_of(text: object) -> float | None:
    """Parse a time written by `now`, in seconds since the epoch; None for other text."""
    try:
        return float(calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")))
    except (ValueError, OverflowError):
        return None
