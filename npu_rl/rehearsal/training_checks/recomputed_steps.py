"""Results of the recomputed steps (`npu_rl_recompute`) over all processes of a training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.errors import NpuRlError
from npu_rl.common.printable import counted

_FILES = "recomputed-*.jsonl"
_COUNT = re.compile(r"(recomputed|not recomputed|recompute hook used|recompute hook fired): (.+)")


def is_recomputation(name: str) -> bool:
    """Return whether a name among the counts of stand-ins is one of the recomputation."""
    return bool(_COUNT.fullmatch(name))


@dataclass
class RecomputedSteps:
    """The recomputation of a training's steps.

    Attributes:
        comparisons: Number of compared batches, or micro batches, by quantity.
        left_out: Reasons by quantity that was not recomputed.
        unfired: Classes and functions that were used, and whose hook compared nothing.
        differences: What differed, as text.
    """

    comparisons: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    unfired: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return what was recomputed, and what was not, as text."""
        done = ", ".join(f"{name} ({counted(number, 'time')})" for name, number in self.comparisons.items())
        lines = [f"recomputed in float64: {done}"] if done else []
        return lines + [f"not recomputed: {name}: {why}" for name, why in self.left_out.items()]

    def require_right(self, record: Path, steps: int) -> None:
        """Raise NpuRlError if a value differed, or if in so many steps a hook compared nothing."""
        if self.differences:
            raise NpuRlError(
                "The trainer's step differs from the formulas",
                where=str(record),
                why="\n".join(self.differences),
                hint="`npu-rl summary` lists the patches that change the function; docs/rehearsal.md (What is "
                "recomputed) explains the quantities.",
            )
        if steps and (self.unfired or not self.comparisons):
            raise NpuRlError(
                "A step was not recomputed",
                where=str(record),
                why="\n".join(
                    f"{place} was used, and npu-rl's hook compared nothing" for place in self.unfired
                )
                or f"The training made {steps} steps, and none of npu-rl's hooks compared anything.",
            )


def read_recomputed_steps(folders: Iterable[Path], counts: Counter[str]) -> RecomputedSteps:
    """Return the recomputation recorded in the folders of usage counts.

    Args:
        counts: The counts of stand-ins in them.
    """
    found = RecomputedSteps()
    used, fired = set[str](), set[str]()
    for name, number in sorted(counts.items()):
        match = _COUNT.fullmatch(name)
        if not match:
            continue
        kind, what = match.groups()
        if kind == "recomputed":
            found.comparisons[what] = number
        elif kind == "not recomputed":
            quantity, _, why = what.partition(": ")
            found.left_out[quantity] = why
        else:
            (used if kind.endswith("used") else fired).add(what)
    found.unfired = sorted(used - fired)
    found.differences = [text for folder in folders for text in _differences(folder)]
    return found


def _differences(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob(_FILES)):
        for text in read_file(file).decode("utf-8", "replace").splitlines():
            try:
                yield str(parse_json(text)["text"])
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a killed process may be incomplete
