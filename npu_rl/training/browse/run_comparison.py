"""Comparison of two runs: recipe, stack, environment, packages and results."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npu_rl.common.errors import NpuRlError
from npu_rl.stack.comparison.stack_differences import StackDifferences, compare, read_lock_file
from npu_rl.training.browse.run_rows import run_row, steps_text
from npu_rl.training.monitor.metrics import rewards, seconds, throughput
from npu_rl.training.monitor.plot import two_curves
from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.recorded_run import RecordedRun

# Variables that npu-rl sets anew for each attempt, from the run's folder, its nodes and the tree.
_OF_AN_ATTEMPT = {
    *("NPU_RL_BYTE_CODE", "NPU_RL_NODES", "NPU_RL_RAY", "NPU_RL_RUN", "NPU_RL_USAGE"),
    *("PYTHONPYCACHEPREFIX", "TENSORBOARD_DIR"),
}
_RECENT = 50  # last steps whose medians are compared


@dataclass(frozen=True)
class DifferingValue:
    """A value that differs between two runs; None for a run without it."""

    name: str
    first: str | None
    second: str | None

    def to_json(self) -> dict[str, str | None]:
        """Return the value as documented in docs/json.md."""
        return {"name": self.name, "a": self.first, "b": self.second}


@dataclass(frozen=True)
class RunComparison:
    """The differences between two runs, as `runs compare` prints them."""

    first: RecordedRun
    second: RecordedRun

    @cached_property
    def values(self) -> dict[str, list[DifferingValue]]:
        """Differing values of the recipe, the environment, the packages, the host and the run itself."""
        runs = (self.first, self.second)
        sides = {
            "recipe": [_recipe_values(run) for run in runs],
            "run": [_run_values(run) for run in runs],
            "environment": [_environment(run) for run in runs],
            "packages": [run.packages for run in runs],
            "host": [_host(run) for run in runs],
        }
        found = {name: list(_differing(*pair)) for name, pair in sides.items()}
        if all(run.attempts for run in runs) and not found["recipe"]:  # the digest is also of the run's name
            found["run"] = [one for one in found["run"] if one.name != "recipe_digest"]
        return found

    @cached_property
    def stack(self) -> StackDifferences | None:
        """The differences in pins, merges, patches and requirements; None if a lock can't be read."""
        return self._stack_or_reason if isinstance(self._stack_or_reason, StackDifferences) else None

    @cached_property
    def not_compared(self) -> list[str]:
        """Parts that could not be compared, with the reason."""
        reason = self._stack_or_reason
        return [
            *([f"stack: {reason}"] if isinstance(reason, str) else []),
            *(f"recipe: {run.name} has none" for run in (self.first, self.second) if not run.attempts),
        ]

    @cached_property
    def _stack_or_reason(self) -> StackDifferences | str:
        try:
            sides = [
                read_lock_file(str(run.folder / "lock.json"), _ignore) for run in (self.first, self.second)
            ]
        except NpuRlError as error:
            return f"{error.what} ({error.where})" if error.where else error.what
        except (OSError, ValueError) as error:
            return str(error)
        return compare(sides[0], sides[1])

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as documented in docs/json.md."""
        stack = self.stack
        return {
            "a": _side_json(self.first),
            "b": _side_json(self.second),
            "differences": {name: [one.to_json() for one in found] for name, found in self.values.items()},
            "stack": None if stack is None else stack.to_json(),
            "not_compared": self.not_compared,
        }

    def text(self) -> str:
        """Return the comparison as lines; A and B are the two runs."""
        both = (("A", self.first), ("B", self.second))
        plot = two_curves(self.first.points, self.second.points)
        parts = [
            [f"{letter}  {_outcome(run)}" for letter, run in both],
            [plot, "A and B as above, # where they meet"] if plot else ["No reward to draw."],
            *(list(_lines(title, found)) for title, found in self.values.items() if found),
            list(self._stack_lines()),
            [f"not compared: {text}" for text in self.not_compared],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def _stack_lines(self) -> Iterator[str]:
        stack = self.stack
        if stack is None:
            return
        rows = [
            *((name, "pin", before, after) for name, before, after, _ in stack.pin_rows()),
            *(
                (of, f"{what} {change}", before, after)
                for of, what, change, before, after in stack.value_rows()
            ),
        ]
        if not rows:
            yield "stack: the same components, merges and patches"
            return
        yield "stack"
        for of, what, before, after in rows:
            yield f"  {of}: {what}"
            yield from (f"    {letter}  {value}" for letter, value in (("A", before), ("B", after)) if value)


def _ignore(_: str) -> None:
    """Discard a note about manifests, since locks are compared here."""


def _lines(title: str, found: list[DifferingValue]) -> Iterator[str]:
    yield title
    for one in found:
        yield f"  {one.name}"
        yield f"    A  {'(not set)' if one.first is None else one.first}"
        yield f"    B  {'(not set)' if one.second is None else one.second}"


def _outcome(run: RecordedRun) -> str:
    reward, took, tokens = run.last_reward, _step_seconds(run), _tokens(run)
    words = [
        f"{run.name}: {run.state}",
        f"{steps_text(run)} steps" if run.attempts else "",
        "" if reward is None else f"reward {reward:.3f}",
        "" if run.seconds is None else clock(run.seconds),
        "" if took is None else f"{took:.3g} s a step",
        "" if tokens is None else f"{tokens:.0f} tok/s/device",
        "UNPROVEN" if run.unproven is not None else "",
    ]
    return ", ".join(filter(None, words))


def _side_json(run: RecordedRun) -> dict[str, Any]:
    return {
        **run_row(run),
        "step_seconds": _step_seconds(run),
        "tokens_per_second": _tokens(run),
        "curve": [[step, value] for step, value in rewards(run.points)],
    }


def _step_seconds(run: RecordedRun) -> float | None:
    found = [took for point in run.points[-_RECENT:] if (took := seconds(point.data)) is not None]
    return round(statistics.median(found), 4) if found else None


def _tokens(run: RecordedRun) -> float | None:
    found = [rate[0] for point in run.points[-_RECENT:] if (rate := throughput(point.data)) is not None]
    return round(statistics.median(found), 1) if found else None


def _run_values(run: RecordedRun) -> dict[str, str]:
    names = ("manifest", "tree", "commit", "workspace")
    found = {name: value for name in names if (value := run.fact(name)) is not None}
    interpreter = run.facts.get("interpreter")
    if isinstance(interpreter, dict):
        found |= {f"python {key}": str(interpreter[key]) for key in ("version", "path") if key in interpreter}
    digest = {} if run.recipe.digest is None else {"recipe_digest": run.recipe.digest}
    return found | digest | {"recipe": run.recipe.argument, "unproven": run.unproven or "no"}


def _recipe_values(run: RecordedRun) -> dict[str, str]:
    """Return each value of the recipe; where attempts had several, each with its steps."""
    attempts = [(run.steps_of(one), _flat({**one.recipe_data, "name": run.name})) for one in run.attempts]
    trained = [(steps, values) for steps, values in attempts if steps] or attempts[-1:]
    found: dict[str, str] = {}
    for key in {key for _, values in trained for key in values if key != "name"}:
        values = [(steps, of_attempt.get(key, "(not set)")) for steps, of_attempt in trained]
        if len({value for _, value in values}) == 1:
            found[key] = values[0][1]
        else:
            found[key] = ", then ".join(
                f"{value} in steps {steps[0]}-{steps[1]}" for steps, value in values if steps
            )
    return found


def _environment(run: RecordedRun) -> dict[str, str]:
    given = run.last.environment if run.last else {}
    return {name: value for name, value in given.items() if name not in _OF_AN_ATTEMPT}


def _host(run: RecordedRun) -> dict[str, str]:
    """Return the facts of the host, each part of its environment by name and without the parts' ids."""
    facts = dict(run.last.host) if run.last else {}
    environment = facts.pop("environment", None)
    parts = environment.get("parts") if isinstance(environment, Mapping) else None
    found = _flat(facts)
    for name, part in parts.items() if isinstance(parts, Mapping) else ():
        found |= _flat({f"environment.{name}": part.get("value") if isinstance(part, Mapping) else part})
    return found if run.nodes is None else {**found, "nodes": str(run.nodes)}


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[DifferingValue]:
    for name in sorted(first.keys() | second.keys()):
        if not _equal(first.get(name), second.get(name)):
            yield DifferingValue(name, first.get(name), second.get(name))


def _equal(first: str | None, second: str | None) -> bool:
    """Return whether two values are equal as text or as numbers. YAML reads 3e-3 as text."""
    if first == second or first is None or second is None:
        return first == second
    try:
        return float(first) == float(second)
    except ValueError:
        return False


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested keys as KEY.KEY, with their values as text."""
    found: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):  # an empty one sets nothing
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _plain(value)
    return found


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
