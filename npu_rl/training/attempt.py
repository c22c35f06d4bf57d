"""One go at a run: its folder, its files, how it ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.disk import disk_errors, write_atomically
from npu_rl.training.metrics import read_metrics

OUTCOMES = ("done", "failed", "stopped", "killed")


@dataclass
class Attempt:
    """One go at a run: its files, and how it ended (`outcome` is None while it lasts)."""

    folder: Path
    number: int
    outcome: str | None = None
    code: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False, compare=False)

    @property
    def driver_log(self) -> Path:
        return self.folder / "driver.log"

    @property
    def workers(self) -> Path:
        return self.folder / "workers"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def usage(self) -> Path:
        return self.folder / "usage"

    @property
    def alarms(self) -> Path:
        return self.folder / "alarms.jsonl"

    def add_alarm(self, alarm: Mapping[str, Any]) -> None:
        """Append one alarm, with the time."""
        line = json.dumps({"time": round(time.time(), 3), **alarm}, ensure_ascii=False) + "\n"
        with disk_errors(self.alarms), self.alarms.open("a", encoding="utf-8") as file:
            file.write(line)

    def end(
        self, outcome: str, code: int | None, first_step: int | None = None, last_step: int | None = None
    ) -> None:
        """Write how it ended and let others have the run. The first end counts; a second one is ignored.

        outcome: done, failed, stopped (a person or an alarm ended it) or killed. code: the driver's exit
        status. first_step, last_step: by default those of metrics.jsonl.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f"{outcome!r} is none of {', '.join(OUTCOMES)}")
        try:
            if self.outcome is None:
                steps = [point.step for point in read_metrics(self.metrics)]
                self.first_step = min(steps, default=None) if first_step is None else first_step
                self.last_step = max(steps, default=None) if last_step is None else last_step
                self.outcome, self.code = outcome, code
                write_json(self.folder / "end.json", self._end())
        finally:
            self._held.close()

    def _end(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "code": self.code,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "ended": now(),
        }


def attempts_in(folder: Path) -> list[Attempt]:
    """The attempts on disk, in order."""
    numbers = sorted(int(p.name) for p in (folder / "attempts").glob("[0-9]*") if p.name.isdigit())
    return [_attempt(folder / "attempts" / str(number), number) for number in numbers]


def _attempt(folder: Path, number: int) -> Attempt:
    attempt = Attempt(folder, number)
    with contextlib.suppress(FileNotFoundError, ValueError, AttributeError):
        end = json.loads((folder / "end.json").read_bytes())
        attempt.code, attempt.first_step = end.get("code"), end.get("first_step")
        attempt.last_step, attempt.outcome = end.get("last_step"), end.get("outcome")
    return attempt


def write_json(path: Path, value: Any) -> None:
    with disk_errors(path):
        write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def now() -> str:
    """The time for people and machines, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
