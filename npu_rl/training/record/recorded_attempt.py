"""One attempt of a recorded run, with its alarms, read without changing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, open_file, parse_json, read_file, read_json
from npu_rl.training.monitor.metrics import Point, read_metrics
from npu_rl.training.record.attempt import Attempt, seconds_of

_LARGEST_ALARMS = 16 << 20  # bytes


@dataclass(frozen=True)
class RecordedAlarm:
    """An alarm of an attempt.

    Attributes:
        step: The last step that was logged before it; None before the first.
        time: Seconds since the epoch; None if it was not recorded.
        hint: What to do; "" in records of npu-rl 0.1.0.
        count: How often the attempt had raised it for this cause, with this time.
    """

    attempt: int
    step: int | None
    time: float | None
    kind: str
    message: str
    cause: str
    place: str
    hint: str
    fatal: bool
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return the alarm as documented in docs/json.md."""
        return dict(vars(self))


@dataclass(frozen=True)
class RecordedAttempt:
    """One attempt: its command, host and outcome.

    Attributes:
        started, ended: Seconds since the epoch; None if that was not recorded.
        outcome: One of `attempt.OUTCOMES`; None without a recorded end.
        signal: The signal that npu-rl received, such as SIGTERM.
        command: The driver's words, with secrets masked.
        environment: The driver's recorded variables, with secrets masked.
        host: Facts of the host where `train` ran.
        nodes: Reports of the nodes; empty if Ray did not start.
        config: The trainer's whole composed configuration.
        drift: The changes to the tree, of an unproven attempt.
    """

    folder: Path
    number: int
    started: float | None
    ended: float | None
    outcome: str | None
    code: int | None
    driver_code: int | None
    signal: str | None
    command: tuple[str, ...]
    launcher: int | None
    driver: int | None
    host: Mapping[str, Any]
    nodes: tuple[Mapping[str, Any], ...]

    @property
    def driver_log(self) -> Path:
        """Output of the driver."""
        return self.folder / "driver.log"

    @cached_property
    def refused(self) -> dict[str, Any]:
        """Why the cluster was refused before the trainer started (what, where, why, hint); empty if it was not."""
        found = optional_object(self.folder / "nodes.json").get("refused")
        return found if isinstance(found, dict) else {}

    @cached_property
    def error(self) -> dict[str, Any]:
        """The error that ended it (what, where, why, hint), such as a missed goal; empty of a stopped one."""
        found = optional_object(self.folder / "end.json").get("error")
        return found if isinstance(found, dict) else {}

    @cached_property
    def points(self) -> list[Point]:
        """The attempt's metrics in order, including steps that a later attempt repeated; empty if unreadable."""
        try:
            return read_metrics(self.folder / "metrics.jsonl")
        except OSError:
            return []

    @cached_property
    def environment(self) -> dict[str, str]:
        """The driver's recorded variables, with secrets masked."""
        return {name: str(value) for name, value in optional_object(self.folder / "environment.json").items()}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The trainer's composed configuration; empty if it was not recorded."""
        return optional_object(self.folder / "composed.json")

    @cached_property
    def drift(self) -> dict[str, Any]:
        """The differences of the tree from its lock; empty for proven code."""
        return optional_object(self.folder / "drift.json")

    @cached_property
    def alarms(self) -> list[RecordedAlarm]:
        """The attempt's alarms in order."""
        return list(_alarms(self))

    def seconds(self, now: float) -> float | None:
        """Return the attempt's duration so far in seconds; None if it was not recorded."""
        if self.started is None or (self.ended is None and self.outcome is not None):
            return None
        return max((now if self.ended is None else self.ended) - self.started, 0.0)


# -- reading ---------------------------------------------------------------------------------------------


def recorded_attempt(attempt: Attempt, missing: list[str]) -> RecordedAttempt:
    """Read a recorded attempt.

    Args:
        attempt: The attempt on disk.
        missing: Gets a line for each file that can't be read.
    """
    folder = attempt.folder
    command = _recorded(folder / "command.json", missing)
    host = _recorded(folder / "host.json", missing)
    end = optional_object(folder / "end.json")
    _check_optional(folder / "metrics.jsonl", missing)
    nodes = optional_object(folder / "nodes.json").get("nodes")
    words = command.get("command")
    signal = end.get("signal")
    return RecordedAttempt(
        folder,
        attempt.number,
        seconds_of(command.get("started")),
        seconds_of(end.get("ended")),
        attempt.outcome if isinstance(attempt.outcome, str) else None,
        attempt.code if isinstance(attempt.code, int) else None,
        attempt.driver_code if isinstance(attempt.driver_code, int) else None,
        signal if isinstance(signal, str) else None,
        tuple(map(str, words)) if isinstance(words, list) else (),
        attempt.launcher,
        attempt.driver,
        host,
        tuple(node for node in nodes if isinstance(node, dict)) if isinstance(nodes, list) else (),
    )


def _recorded(path: Path, missing: list[str]) -> dict[str, Any]:
    """Read a JSON object that every attempt has. A missing one is reported as a problem."""
    try:
        found = read_json(path)
        if isinstance(found, dict):
            return found
        missing.append(f"{path}: not a JSON object")
    except (OSError, ValueError) as error:
        missing.append(f"{path}: {unreadable(error)}")
    return {}


def _check_optional(path: Path, missing: list[str]) -> None:
    """Report a file as a problem that is there and can't be read."""
    try:
        open_file(path).close()
    except OSError as error:
        if error.errno not in NO_FILE:
            missing.append(f"{path}: {unreadable(error)}")


def optional_object(path: Path) -> dict[str, Any]:
    """Read an optional JSON object of a record; empty if it can't be read."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def number_at(data: Mapping[str, Any], *path: str) -> float | None:
    """Return the number at a path in nested data, also if stored as text, or None."""
    value: Any = data
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < 1e15 else None


def unreadable(error: OSError | ValueError) -> str:
    """Return why a file of a record can't be read, in a few words."""
    if isinstance(error, OSError):
        return "missing" if error.errno in NO_FILE else error.strerror or str(error)
    return str(error)


def _alarms(attempt: RecordedAttempt) -> Iterator[RecordedAlarm]:
    try:
        lines = read_file(attempt.folder / "alarms.jsonl", _LARGEST_ALARMS).splitlines()
    except (OSError, ValueError):
        return
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        try:
            data = parse_json(line)
        except ValueError:
            continue  # its writer was killed in the middle of a line
        if isinstance(data, dict):
            yield _alarm(attempt, data, counts)


def _alarm(
    attempt: RecordedAttempt, data: Mapping[str, Any], counts: Counter[tuple[str, str]]
) -> RecordedAlarm:
    said = {name: str(data.get(name, "")) for name in ("kind", "message", "cause", "place", "hint")}
    counts[said["kind"], said["cause"]] += 1
    when = number_at(data, "time")
    step = number_at(data, "step")
    if step is None and when is not None:  # both are rounded to a thousandth
        before = [point.step for point in attempt.points if point.time <= when + 0.002]
        step = before[-1] if before else None
    return RecordedAlarm(
        attempt.number,
        None if step is None else int(step),
        when,
        **said,
        fatal=data.get("fatal") is True,
        count=counts[said["kind"], said["cause"]],
    )
