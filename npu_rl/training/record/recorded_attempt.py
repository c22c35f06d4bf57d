"""One attempt of a recorded run, with its alarms, read without changing it. A damaged file is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, parse_json, parse_yaml, read_file
from npu_rl.common.yaml_documents.file_digests import BUNDLED
from npu_rl.training.monitor.metrics import Point, read_metrics
from npu_rl.training.record.attempt import (
    DRIVER,
    LARGEST_RECIPE,
    AttemptFolder,
    Started,
    damaged,
    read_object,
    seconds_of,
)

_LARGEST_ALARMS = 16 << 20  # bytes
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class RecordedAlarm:
    """An alarm of an attempt.

    Attributes:
        step: The step that it is about; None before the first.
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
class RecordedAttempt(AttemptFolder):
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
    def signal(self) -> str | None:
        """The signal that npu-rl received, such as SIGTERM."""
        return self.end.get("signal")

    @property
    def error(self) -> dict[str, str]:
        """The error that ended it (what, where, why, hint), such as a missed goal; empty of a stopped one."""
        return dict(self.end.get("error", {}))

    @property
    def unproven(self) -> str | None:
        """The user's reason for running code that differs from the lock; None for proven code."""
        return self.begun["drift"]["reason"] if "drift" in self.begun else None

    @property
    def npu_rl_process(self) -> Started:
        """The npu-rl that began it. Raises NpuRlError if its record is damaged."""
        return Started.of(self.begun.get("npu_rl"), self.folder / "command.json")

    @property
    def driver(self) -> Started | None:
        """Its driver; None if none was started. Raises NpuRlError if its record is damaged."""
        path = self.folder / DRIVER
        return Started.of(read_object(path), path) if path.exists() else None

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
        try:
            return read_metrics(self.metrics)
        except OSError as error:
            raise damaged(self.metrics, error) from error

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


def recorded_attempt(folder: Path) -> RecordedAttempt:
    """Read a recorded attempt. Raises NpuRlError if a file that each attempt has is missing or damaged."""
    begun, end = read_object(folder / "command.json"), read_object(folder / "end.json", optional=True)
    found = RecordedAttempt(folder, int(folder.name), begun, end, read_object(folder / "host.json"))
    for name, read in (
        ("command.json", lambda: (found.started, begun["command"], found.recipe.files, found.unproven)),
        ("end.json", lambda: end and (found.ended, end["outcome"])),
    ):
        try:
            read()
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(folder / name, f"Invalid or missing: {error}") from error
    return found


def recorded_attempts(run: Path) -> list[RecordedAttempt]:
    """Return the attempts of a run's folder, in order. Raises NpuRlError if one is damaged."""
    numbers = sorted(int(path.name) for path in run.glob("attempts/[1-9]*") if _NUMBER.fullmatch(path.name))
    return [recorded_attempt(run / "attempts" / str(number)) for number in numbers]


def _alarms(attempt: RecordedAttempt) -> Iterator[RecordedAlarm]:
    path = attempt.folder / "alarms.jsonl"
    try:
        lines = read_file(path, _LARGEST_ALARMS).splitlines(keepends=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_FILE:
            return
        raise damaged(path, error) from error
    for line in lines:
        if not line.endswith(b"\n"):
            return  # its writer was killed in the middle of the line
        try:
            yield RecordedAlarm(attempt=attempt.number, **parse_json(line))
        except (TypeError, ValueError) as error:
            raise damaged(path, error) from error
