"""Comparison of two runs: recipe, stack, environment, packages and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npu_rl.common.errors import NpuRlError
from npu_rl.stack.comparison.stack_differences import LockFile, StackDifferences, compare
from npu_rl.stack.lock import lock_model
from npu_rl.training.browse.attempt_changes import trained_recipe
from npu_rl.training.browse.run_page import RunPage
from npu_rl.training.monitor.plot import two_curves
from npu_rl.training.record.differing_values import DifferingValue, differing, flat
from npu_rl.training.record.recorded_run import RecordedRun

# Variables that npu-rl sets anew for each attempt, from the run's folder, its nodes and the tree.
_OF_AN_ATTEMPT = {
    *("NPU_RL_BYTE_CODE", "NPU_RL_NODES", "NPU_RL_RAY", "NPU_RL_RUN", "NPU_RL_USAGE"),
    *("PYTHONPYCACHEPREFIX", "TENSORBOARD_DIR"),
}
# Parts of an environment that no other value has: its tree, variables and packages are compared by themselves.
_PARTS = ("built", "cann", "driver", "image")
_FACTS = (
    "manifest",
    "tree",
    "workspace",
    "interpreter",
    "rehearsal",
)  # of run.json; commit and digests follow from them


@dataclass(frozen=True)
class RunComparison:
    """The differences between two runs, as `runs compare` prints them."""

    first: RecordedRun
    second: RecordedRun

    @cached_property
    def stack(self) -> StackDifferences | str:
        """The differences in pins, merges, patches and requirements; else why the locks could not be compared."""
        paths = [run.folder / "lock.json" for run in (self.first, self.second)]
        try:
            before, after = (LockFile(path, lock_model.read(path)) for path in paths)
        except NpuRlError as error:
            return f"The stacks were not compared: {error.where}: {error.what}"
        return compare(before, after)

    @cached_property
    def differences(self) -> list[DifferingValue]:
        """All differences."""
        found = list(differing(_compared(self.first), _compared(self.second)))
        if isinstance(self.stack, StackDifferences):
            pins = ((f"{of}: pin", a, b) for of, a, b, _ in self.stack.pin_rows())
            others = ((f"{of}: {what}", a, b) for of, what, _, a, b in self.stack.value_rows())
            found += [DifferingValue(name, a or None, b or None) for name, a, b in (*pins, *others)]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as documented in docs/json.md."""
        return {
            **{letter: RunPage(run).to_json() for letter, run in (("a", self.first), ("b", self.second))},
            "differences": [one._asdict() for one in self.differences],
            "not_compared": self.stack if isinstance(self.stack, str) else None,
        }

    def text(self) -> str:
        """Return the comparison as lines; A and B are the two runs."""
        plot = two_curves(self.first.points, self.second.points)
        heads = [
            f"{letter}  {next(RunPage(run).head())}"
            for letter, run in (("A", self.first), ("B", self.second))
        ]
        drawn = f"{plot}\nA and B as above, # where they meet" if plot else "No reward to draw."
        stacks = [self.stack] if isinstance(self.stack, str) else []
        return "\n\n".join(("\n".join(heads), drawn, "\n".join(self._lines()), *stacks)) + "\n"

    def _lines(self) -> Iterator[str]:
        for one in self.differences:
            yield one.name
            yield from (
                f"  {letter}  {value or '(not set)'}" for letter, value in (("A", one.a), ("B", one.b))
            )
        if not self.differences:
            yield "The same recipe, tree, environment and packages."


def _compared(run: RecordedRun) -> dict[str, str]:
    """Return what is compared of a run, by name."""
    last = run.last
    host = dict(last.host) if last else {}
    parts = host.pop("environment", {}).get("parts", {})
    variables = last.environment if last else {}
    recipe = {name: value for name, value in trained_recipe(run).items() if name != "name"}
    return flat(
        {
            "recipe": {"file": run.recipe.argument, **recipe},
            **{name: run.facts[name] for name in _FACTS if name in run.facts},
            "unproven": run.unproven or "no",
            "nodes": run.nodes,
            "variables": {name: value for name, value in variables.items() if name not in _OF_AN_ATTEMPT},
            "host": {**host, **{name: parts[name]["value"] for name in _PARTS if name in parts}},
        }
    )
