"""One attempt of a recorded run, with its alarms, read without changing it. A damaged file is an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, parse_json, parse_yaml, read_file
from npu_rl.common.yaml_documents.file_digests import BUNDLED
from npu_rl.training.monitor.metrics import Point, read_metrics
from npu_rl.training.record.attempt import LARGEST_RECIPE, damaged, read_object, seconds_of

_LARGEST_ALARMS = 16 << 20  # bytes


@dataclass(frozen=True)
class RecordedAlarm:
    """An alarm of an attempt.

    Attributes:
        step: The last step that was logged before it; None before the first.
        time: Seconds since the epoch.
        count: How often the attempt had raised it for this cause, with this time.
    """

    attempt: int
    step: int | None
    time: float
    kind: str
    message: str
    cause: str
    place: str
    hint: str
    fatal: bool
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return the alarm as documented in docs/json.md."""
        return asdict(self)


@dataclass(frozen=True)
class RecordedRecipe:
    """What an attempt ran, and of a rehearsal without attempts what it was to run.

    Attributes:
        facts: The record of its start: the content of command.json, or of run.json.
    """

    facts: Mapping[str, Any]

    @property
    def argument(self) -> str:
        """The recipe's argument for a command line: its bundled name, or its path."""
        first = next(iter(self.files), self.facts.get("recipe", "RECIPE"))
        return str(self.facts.get("recipe_path", first.removeprefix(BUNDLED).removesuffix(".yaml")))

    @property
    def name(self) -> str:
        """The name of the recipe's file, without its suffix."""
        return Path(self.argument).name.removesuffix(".yaml")

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of the recipe and of each file that it extends, by portable name."""
        return dict(self.facts.get("recipe_files", {}))

    @property
    def extended(self) -> tuple[str, ...]:
        """Names of the bundled recipes that the recipe extends, the nearest first."""
        bundled = (
            one.removeprefix(BUNDLED).removesuffix(".yaml") for one in self.files if one.startswith(BUNDLED)
        )
        return tuple(name for name in bundled if name != self.name)

    @property
    def digest(self) -> str | None:
        """SHA-256 of the typed values."""
        return self.facts.get("recipe_digest")

    @property
    def overrides(self) -> tuple[str, ...]:
        """KEY=VALUE arguments of the command line, with secrets masked."""
        return tuple(self.facts.get("overrides", ()))

    @property
    def goal(self) -> float | None:
        """The goal for the mean reward."""
        return self.facts.get("goal")

    @property
    def steps(self) -> int | None:
        """The number of steps of the whole run."""
        return self.facts.get("steps")


@dataclass(frozen=True)
class RecordedAttempt:
    """One attempt: what it ran, its host and outcome.

    Attributes:
        begun: The content of command.json: the driver's words, npu-rl's process, and the recipe.
        end: That of end.json; empty without a recorded end.
        host: Facts of the host where `train` ran.
    """

    folder: Path
    number: int
    begun: Mapping[str, Any]
    end: Mapping[str, Any]
    host: Mapping[str, Any]

    @property
    def recipe(self) -> RecordedRecipe:
        """What it ran."""
        return RecordedRecipe(self.begun)

    @property
    def driver_log(self) -> Path:
        """Output of the driver."""
        return self.folder / "driver.log"

    @property
    def started(self) -> float:
        """Seconds since the epoch."""
        return seconds_of(self.begun["started"])

    @property
    def ended(self) -> float | None:
        """Seconds since the epoch; None without a recorded end."""
        return seconds_of(self.end["ended"]) if self.end else None

    @property
    def outcome(self) -> str | None:
        """One of `attempt.OUTCOMES`; None without a recorded end."""
        return self.end.get("outcome")

    @property
    def code(self) -> int | None:
        """The exit code of the command that ran it."""
        return self.end.get("code")

    @property
    def driver_code(self) -> int | None:
        """The driver's exit status."""
        return self.end.get("driver_code")

    @property
    def signal(self) -> str | None:
        """The signal that npu-rl received, such as SIGTERM."""
        return self.end.get("signal")

    @property
    def error(self) -> dict[str, str]:
        """The error that ended it (what, where, why, hint), such as a missed goal; empty of a stopped one."""
        return dict(self.end.get("error", {}))

    @property
    def command(self) -> tuple[str, ...]:
        """The driver's words, with secrets masked."""
        return tuple(self.begun["command"])

    @property
    def unproven(self) -> str | None:
        """The user's reason for running code that differs from the lock; None for proven code."""
        return self.begun["drift"]["reason"] if "drift" in self.begun else None

    @property
    def started_driver(self) -> bool:
        """Return whether the trainer was started."""
        return (self.folder / "driver.json").exists()

    @cached_property
    def _nodes_report(self) -> dict[str, Any]:
        return read_object(self.folder / "nodes.json", optional=True)

    @property
    def nodes(self) -> tuple[Mapping[str, Any], ...]:
        """Reports of the nodes; empty if Ray did not start."""
        return tuple(self._nodes_report.get("nodes", ()))

    @property
    def refused(self) -> dict[str, str]:
        """Why the cluster was refused before the trainer started (what, where, why, hint); empty if it was not."""
        return dict(self._nodes_report.get("refused", {}))

    @cached_property
    def points(self) -> list[Point]:
        """The attempt's metrics in order, including steps that a later attempt repeated."""
        path = self.folder / "metrics.jsonl"
        try:
            return read_metrics(path)
        except OSError as error:
            raise damaged(path, error) from error

    @cached_property
    def recipe_text(self) -> str:
        """The resolved recipe, with a comment on where each value was set."""
        path = self.folder / "recipe.yaml"
        try:
            return read_file(path, LARGEST_RECIPE).decode()
        except (OSError, ValueError) as error:
            raise damaged(path, error) from error

    @cached_property
    def recipe_data(self) -> dict[str, Any]:
        """The resolved recipe as plain data."""
        path = self.folder / "recipe.yaml"
        try:
            return dict(parse_yaml(self.recipe_text) or {})
        except (ValueError, TypeError) as error:
            raise damaged(path, error) from error

    @cached_property
    def environment(self) -> dict[str, str]:
        """The driver's recorded variables, with secrets masked."""
        return read_object(self.folder / "environment.json")

    @cached_property
    def drift(self) -> dict[str, Any]:
        """The differences of the tree from its lock; empty for proven code."""
        return read_object(self.folder / "drift.json", optional=True)

    @cached_property
    def alarms(self) -> list[RecordedAlarm]:
        """The attempt's alarms in order."""
        return list(_alarms(self))

    def seconds(self, now: float) -> float:
        """Return the attempt's duration so far in seconds."""
        return max((now if self.ended is None else self.ended) - self.started, 0.0)


def recorded_attempt(folder: Path) -> RecordedAttempt:
    """Read a recorded attempt. Raises NpuRlError if a file that each attempt has is missing or damaged."""
    begun, end = read_object(folder / "command.json"), read_object(folder / "end.json", optional=True)
    found = RecordedAttempt(folder, int(folder.name), begun, end, read_object(folder / "host.json"))
    for name, read in (
        ("command.json", lambda: (found.started, found.command, found.recipe.files, found.unproven)),
        ("end.json", lambda: end and (found.ended, end["outcome"])),
    ):
        try:
            read()
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(folder / name, f"Invalid or missing: {error}") from error
    return found


def _alarms(attempt: RecordedAttempt) -> Iterator[RecordedAlarm]:
    path = attempt.folder / "alarms.jsonl"
    try:
        lines = read_file(path, _LARGEST_ALARMS).splitlines(keepends=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_FILE:
            return
        raise damaged(path, error) from error
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if not line.endswith(b"\n"):
            return  # its writer was killed in the middle of the line
        try:
            yield _alarm(attempt, parse_json(line), counts)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, error) from error


def _alarm(
    attempt: RecordedAttempt, data: Mapping[str, Any], counts: Counter[tuple[str, str]]
) -> RecordedAlarm:
    text = {name: str(data[name]) for name in ("kind", "message", "cause", "place", "hint")}
    counts[text["kind"], text["cause"]] += 1
    when = float(data["time"])
    step = data.get("step")
    if step is None:
        before = [point.step for point in attempt.points if point.time <= when + 0.002]  # both are rounded
        step = before[-1] if before else None
    return RecordedAlarm(
        attempt.number,
        None if step is None else int(step),
        when,
        **text,
        fatal=data["fatal"] is True,
        count=counts[text["kind"], text["cause"]],
    )
