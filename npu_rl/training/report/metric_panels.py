"""The charts of a report: the metrics in each chart, over the steps of one or two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_rl.common.printable import one_line
from npu_rl.training.monitor.metrics import (
    DIFFERENCE,
    PHASES,
    REWARDS,
    Point,
    seconds,
    throughput,
)
from npu_rl.training.record.recorded_run import RecordedRun

PER_DIE, PER_CARD = "tokens_per_second/die", "tokens_per_second/card"
_RECENT = 10  # last values that a mean is taken of
_MOST_VALIDATIONS = 4
_LONGEST_LABEL = 100  # characters; a source of data may be called anything
_VALIDATION = ("val-core/", "val/test_score/")
_PHASES = (*PHASES, "values", "update_critic", "update_weights", "testing", "save_checkpoint")

_Panel = tuple[str, str, str, Sequence[Sequence[str]]]  # id, title, unit, and of each metric the names


def _panel(id: str, title: str, unit: str, metrics: str) -> _Panel:
    """Return a chart of metrics between spaces; several names of one between bars, since trainers differ."""
    return id, title, unit, [names.split("|") for names in metrics.split()]


_PANELS = (
    _panel("reward", "Reward", "mean over the responses of a step", "|".join(REWARDS)),
    _panel(
        "lengths",
        "Length of responses and prompts",
        "tokens",
        "response_length/mean response_length/max response_length/min prompt_length/mean",
    ),
    _panel("clipped", "Responses cut at the length limit", "share of one", "response_length/clip_ratio"),
    _panel("entropy", "Entropy", "nats per token", "actor/entropy|actor/entropy_loss"),
    _panel(
        "kl",
        "KL",
        "nats per token: ppo_kl of the update, the others to the reference",
        "actor/kl_loss actor/reward_kl_penalty|critic/kl actor/ppo_kl",
    ),
    _panel(
        "difference",
        "Rollout-trainer difference",
        "difference of the probabilities of the sampled tokens",
        f"{DIFFERENCE} training/rollout_probs_diff_max training/rollout_probs_diff_std",
    ),
    _panel("grad-norm", "Gradient norm", "before clipping", "actor/grad_norm critic/grad_norm"),
    _panel(
        "phases",
        "Time per phase",
        "seconds; reshard is a part of gen",
        " ".join(f"timing_s/{name}" for name in ("step", *_PHASES)),
    ),
    _panel("throughput", "Tokens per second", "prompts and responses", f"{PER_DIE} {PER_CARD}"),
    _panel(  # since verl 0.8 it comes with the actor's output (engine_workers.py:211)
        "memory",
        "Peak memory of a device",
        "GiB, as the trainer's allocator counts it",
        " ".join(
            f"perf/max_memory_{kind}_gb|actor/perf/max_memory_{kind}_gb" for kind in ("allocated", "reserved")
        ),
    ),
    _panel("rate", "Learning rate", "", "actor/lr"),
)


@dataclass(frozen=True)
class MetricSeries:
    """One metric over the steps of a report; None for steps without it.

    Attributes:
        name: Label in the legend.
        keys: Names by which trainers log it; the run has the first that it logged.
        other: Whether it is of the run that this one is compared with.
        colour: Number of its colour, the same for the metric of both runs.
    """

    name: str
    keys: Sequence[str]
    values: tuple[float | None, ...]
    other: bool
    colour: int

    @property
    def recent(self) -> float | None:
        """Mean of the last values."""
        return mean([value for value in self.values if value is not None][-_RECENT:])

    @property
    def first(self) -> float | None:
        """First value."""
        return next((value for value in self.values if value is not None), None)

    def data(self) -> dict[str, Any]:
        """Return the series for the page's script: six digits, and NaN or infinity as text."""
        values = [
            one if one is None else float(f"{one:.6g}") if abs(one) < 1e300 else str(one)
            for one in self.values
        ]
        return {
            "name": self.name,
            "key": self.keys[0],
            "other": self.other,
            "colour": self.colour,
            "values": values,
        }


@dataclass(frozen=True)
class MetricPanel:
    """One chart.

    Attributes:
        limits: Values to draw across it, by label.
        not_finite: Steps with NaN or infinity.
    """

    id: str
    title: str
    unit: str
    series: tuple[MetricSeries, ...]
    limits: Mapping[str, float]
    not_finite: tuple[int, ...]


def report_panels(
    run: RecordedRun, other: RecordedRun | None = None, other_name: str = ""
) -> tuple[list[int], list[MetricPanel]]:
    """Return the steps of a report, and the charts whose metrics a run has.

    Args:
        other: Run to compare with.
        other_name: Its name in the legends.
    """
    sides = [step_metrics(one) for one in (run, other) if one is not None]
    steps = sorted({step for side in sides for step in side})
    found = []
    for id, title, unit, metrics in (_PANELS[0], *_validations(sides), *_PANELS[1:]):
        series = tuple(_series(metrics, sides, steps, other_name))
        odd = {
            step
            for one in series
            for step, value in zip(steps, one.values, strict=True)
            if value is not None and not math.isfinite(value)
        }
        limits = {} if id != "reward" or run.recipe.goal is None else {"goal": run.recipe.goal}
        if series:
            found.append(MetricPanel(id, title, unit, series, limits, tuple(sorted(odd))))
    return steps, found


def step_metrics(run: RecordedRun) -> dict[int, dict[str, float]]:
    """Return the metrics of each step, with those that trainers name differently under one name."""
    return {point.step: _metrics(point, run.dies_per_card) for point in run.points}


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of the finite values, or None."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(value / len(finite) for value in finite) if finite else None


def _metrics(point: Point, dies_per_card: int) -> dict[str, float]:
    rate, took = throughput(point.data, dies_per_card), seconds(point.data)
    derived = {
        PER_DIE: rate and rate[0],
        PER_CARD: rate[1] if rate and dies_per_card > 1 else None,
        "timing_s/step": took,
    }
    return {**{key: one for key, one in derived.items() if one is not None}, **point.data}


def _series(
    metrics: Sequence[Sequence[str]],
    sides: Sequence[Mapping[int, Mapping[str, float]]],
    steps: Sequence[int],
    other_name: str,
) -> Iterator[MetricSeries]:
    groups = {names[0].partition("/")[0] for names in metrics}
    for colour, names in enumerate(metrics):
        name = names[0] if len(groups) > 1 else names[0].partition("/")[2]
        for side, label in zip(sides, (name, f"{other_name}: {name}"), strict=False):
            logged = [key for key in names if any(key in data for data in side.values())]
            if logged:
                values = tuple(side.get(step, {}).get(logged[0]) for step in steps)
                yield MetricSeries(
                    one_line(label)[:_LONGEST_LABEL], [*logged, *names], values, label != name, colour
                )


def _validations(sides: Sequence[Mapping[int, Mapping[str, float]]]) -> list[_Panel]:
    """Return the chart of validations, if there are any. Their metrics are named after the data sources."""
    keys = dict.fromkeys(
        key for side in sides for data in side.values() for key in data if key.startswith(_VALIDATION)
    )
    if not keys:
        return []
    more = len(keys) - _MOST_VALIDATIONS
    unit = "as the trainer names it" + (f"; {more} more in metrics.jsonl" if more > 0 else "")
    return [("validation", "Validation", unit, [[key] for key in list(keys)[:_MOST_VALIDATIONS]])]
