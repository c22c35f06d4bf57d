"""A training that saves and validates, is stopped, and is resumed in new processes, as by a user.

The steps after the checkpoint are trained twice, once by the processes that saved it and once by those that loaded it:
weights, optimizer, schedule, data and seeds that a checkpoint loses show in their metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.training.monitor.metrics import Point, read_metrics
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.train import RunStopped

# The step of the checkpoint, and how many steps after it are trained twice.
SAVED, TWICE = 5, 2
GLOO_TOLERANCE = 1e-6
"""Greatest relative difference of a metric over several ranks: gloo adds in an order of its own."""
_LEAST = 1e-3  # size below which a difference counts as one of a value of this size: a sum of both signs may be near 0

# Of the clock, and verl's number of the epoch: of its loop, which starts anew in each process (ray_trainer.py@0.5.0).
_OF_THE_PROCESS = ("timing", "perf/", "training/epoch")
_SHOWN = 5  # metrics that an error names


@dataclass(frozen=True)
class Resumed:
    """The result of a resumed training.

    Attributes:
        saved: Step of the checkpoint that it resumed from.
        steps: Steps that were trained twice.
        metrics: Number of metrics compared in them.
        difference: Greatest relative difference of one.
    """

    saved: int
    steps: tuple[int, ...]
    metrics: int
    difference: float

    def line(self) -> str:
        """Return the comparison as one line of text."""
        how = "equal" if not self.difference else f"within {self.difference:.1g}"
        steps = " and ".join(map(str, self.steps))
        return f"resumed from step {self.saved}: {self.metrics} metrics of steps {steps}, trained twice, are {how}"


def is_interrupted(steps: int, saved: int) -> bool:
    """Return whether a training of so many steps has more than the steps that are trained twice."""
    return steps > saved + TWICE


def with_checkpoints(recipe: Recipe, saved: int) -> Recipe:
    """Return the recipe with a checkpoint every `saved` steps if its training is interrupted, else unchanged.

    It validates after one step more: a validation brings back what a save has put aside, so that the step after a save
    would show nothing (cann-recipes-train at bcd3be7, patch reload-after-checkpoint).
    """
    if not is_interrupted(recipe.steps, saved):
        return recipe
    checkpoint = recipe.checkpoint.model_copy(update={"every": saved})
    logging = recipe.logging.model_copy(update={"validate_every": saved + 1})
    return recipe.model_copy(update={"checkpoint": checkpoint, "logging": logging})


def train_interrupted(
    record: RunRecord, saved: int, ranks: int, attempt: Callable[[bool, int | None], None]
) -> Resumed:
    """Train a recipe of `with_checkpoints`.

    Args:
        record: The run's record, without attempts.
        saved: Step of the first checkpoint.
        ranks: Number of ranks.
        attempt: Trains one attempt, given whether to resume and after which step to stop.

    Raises:
        NpuRlError: If the training fails, does not validate, or differs after the resume.
    """
    attempt(False, saved + TWICE)
    try:
        attempt(True, None)
    except RunStopped:
        raise
    except NpuRlError:
        resumed = _metrics(record)[1:]
        if (
            resumed and len(resumed[0]) >= TWICE
        ):  # a difference is the cause of what came later, as of a low reward
            _compare_attempts(record, saved, ranks)
        raise
    return _compare_attempts(record, saved, ranks)


def _metrics(record: RunRecord) -> list[list[Point]]:
    return [read_metrics(one.metrics) for one in record.attempts]


def _compare_attempts(record: RunRecord, saved: int, ranks: int) -> Resumed:
    before, after = _metrics(record)[:2]
    if not any(name.startswith("val") for point in before for name in point.data):
        raise NpuRlError(
            "The trainer did not validate",
            where=str(record.folder),
            why=f"No metric of steps 1 to {saved + TWICE} is of a validation, due every {saved + 1} steps.",
        )
    return compare_steps(before, after, saved, 0.0 if ranks == 1 else GLOO_TOLERANCE, record.folder)


def compare_steps(
    before: Sequence[Point], after: Sequence[Point], saved: int, tolerance: float, where: Path
) -> Resumed:
    """Compare the steps after a checkpoint in both attempts.

    Raises:
        NpuRlError: If a metric differs by more than the tolerance or is in one attempt only, or a step is missing.
    """
    steps = range(saved + 1, saved + TWICE + 1)
    first, second = ({point.step: point for point in points} for points in (before, after))
    missing = [step for step in steps if step not in first or step not in second]
    if missing:
        raise NpuRlError(
            "The resumed training left out steps",
            where=str(where),
            why=f"Step {missing[0]} follows the checkpoint of step {saved} and has metrics in one attempt only.",
        )
    found = [pair for step in steps for pair in _pairs(first[step], second[step])]
    wrong = [line for difference, line in found if not difference <= tolerance]
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise NpuRlError(
            f"The training differs after a resume from step {saved}",
            where=str(where),
            why="\n".join([*wrong[:_SHOWN], *more]),
        )
    return Resumed(saved, tuple(steps), len(found), max((difference for difference, _ in found), default=0.0))


def _pairs(before: Point, after: Point) -> Iterator[tuple[float, str]]:
    """Yield the relative difference of each metric of a step in both attempts, and a line on it."""
    for name in sorted(before.data.keys() | after.data.keys()):
        if name.startswith(_OF_THE_PROCESS):
            continue
        old, new = before.data.get(name), after.data.get(name)
        if old is None or new is None:
            difference = math.inf
        else:
            difference = 0.0 if old == new else abs(old - new) / max(_LEAST, abs(old))
        if new is None:
            yield difference, f"step {before.step}: {name} is missing after the resume, and was {old:g}"
        else:
            was = "missing" if old is None else f"{old:g}"
            yield difference, f"step {before.step}: {name} is {new:g} after the resume, and was {was}"
