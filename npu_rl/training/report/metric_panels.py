"""The charts of a report: the metrics in each chart, as thinned values over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from npu_rl.common.printable import one_line
from npu_rl.training.monitor.metrics import DIFFERENCE, PHASES, REWARDS, Point, seconds, throughput
from npu_rl.training.report.published_rows import PER_CARD, PER_DIE

MOST_DRAWN = 600  # steps of a chart; a chart is at most some 1,400 pixels wide
OTHER_PHASES = ("values", "update_critic", "update_weights", "testing", "save_checkpoint")
_MOST_VALIDATIONS = 4
_LONGEST_LABEL = 100  # characters
_VALIDATION = ("val-core/", "val/test_score/")


@dataclass(frozen=True)
class MetricSeries:
    """One metric over the steps of a panel; None for steps where it is missing, NaN or infinite.

    Attributes:
        name: Label in the legend.
        key: Metric by verl's name, or PER_DIE, PER_CARD.
        other: Whether it is of the run that this one is compared with.
        colour: Number of its colour, the same for the metric of both runs.
    """

    name: str
    key: str
    values: tuple[float | None, ...]
    other: bool = False
    colour: int = 0


@dataclass(frozen=True)
class MetricPanel:
    """One chart.

    Attributes:
        wanted: Names of the metrics that would be drawn, for a run without them.
        steps: Those with a finite value.
        series: Those that the run has; none without a step.
        of_steps: Number of steps before thinning.
        not_finite: Steps with NaN or infinity, and those of the run that this one is compared with.
        limits: Published values to draw across, by label.
    """

    id: str
    title: str
    unit: str
    wanted: tuple[str, ...]
    steps: tuple[int, ...] = ()
    series: tuple[MetricSeries, ...] = ()
    of_steps: int = 0
    not_finite: tuple[int, ...] = ()
    other_not_finite: tuple[int, ...] = ()
    limits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class _Wanted:
    """A metric to draw, under the first of several keys that a run has."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    id: str
    title: str
    unit: str
    metrics: tuple[_Wanted, ...]


def memory_keys(kind: str) -> tuple[str, str]:
    """Return the names of a peak memory; since verl 0.8 it comes with the actor's output (engine_workers.py:211)."""
    return f"perf/max_memory_{kind}_gb", f"actor/perf/max_memory_{kind}_gb"


_PLANS = (
    _Plan("reward", "Reward", "mean over the responses of a step", (_Wanted("mean reward", REWARDS),)),
    _Plan(
        "response-length",
        "Response length",
        "tokens",
        tuple(_Wanted(end, (f"response_length/{end}",)) for end in ("mean", "max", "min")),
    ),
    _Plan(
        "clipped",
        "Responses cut at the length limit",
        "share of one",
        (_Wanted("clipped", ("response_length/clip_ratio",)),),
    ),
    _Plan(
        "entropy",
        "Entropy",
        "nats per token",
        (_Wanted("entropy", ("actor/entropy", "actor/entropy_loss")),),
    ),
    _Plan(
        "kl",
        "KL",
        "nats per token",
        (
            _Wanted("to the reference, in the loss", ("actor/kl_loss",)),
            _Wanted("to the reference, in the reward", ("actor/reward_kl_penalty", "critic/kl")),
            _Wanted("of the update", ("actor/ppo_kl",)),
        ),
    ),
    _Plan(
        "difference",
        "Rollout-trainer difference",
        "difference of the probabilities of the sampled tokens",
        (
            _Wanted("mean", (DIFFERENCE,)),
            _Wanted("max", ("training/rollout_probs_diff_max",)),
            _Wanted("deviation", ("training/rollout_probs_diff_std",)),
        ),
    ),
    _Plan(
        "grad-norm",
        "Gradient norm",
        "before clipping",
        (_Wanted("actor", ("actor/grad_norm",)), _Wanted("critic", ("critic/grad_norm",))),
    ),
    _Plan(
        "phases",
        "Time per phase",
        "seconds; reshard is a part of gen",
        (
            _Wanted("step", ("timing_s/step", "perf/time_per_step")),
            *(_Wanted(phase, (f"timing_s/{phase}",)) for phase in (*PHASES, *OTHER_PHASES)),
        ),
    ),
    _Plan(
        "throughput",
        "Tokens per second",
        "prompts and responses",
        (_Wanted("per die", (PER_DIE,)), _Wanted("per card", (PER_CARD,))),
    ),
    _Plan(
        "memory",
        "Peak memory of a device",
        "GiB, as the trainer's allocator counts it",
        (
            _Wanted("allocated", memory_keys("allocated")),
            _Wanted("reserved", memory_keys("reserved")),
        ),
    ),
    _Plan("rate", "Learning rate", "", (_Wanted("actor", ("actor/lr",)),)),
)


def report_panels(
    points: Sequence[Point],
    dies_per_card: int,
    *,
    other: tuple[str, Sequence[Point], int] | None = None,
    published: Mapping[str, float] | None = None,
) -> list[MetricPanel]:
    """Return the charts of a run, in order. A chart without values is kept, with the names of its metrics.

    Args:
        other: Name, points and dies per card of the run to compare with.
        published: Published values to draw across the charts.
    """
    ours = [_with_throughput(point, dies_per_card) for point in points]
    theirs = [_with_throughput(point, other[2]) for point in other[1]] if other else []
    plans = [*_PLANS[:1], *_validations([*ours, *theirs]), *_PLANS[1:]]
    return [_panel(plan, ours, theirs, other[0] if other else "", published or {}) for plan in plans]


def with_throughput(data: Mapping[str, float], dies_per_card: int) -> dict[str, float]:
    """Add tokens per second per die to a step's metrics, and per card if it has several dies."""
    rate = throughput(data, dies_per_card)
    if rate is None:
        return dict(data)
    return {**data, PER_DIE: rate[0], **({PER_CARD: rate[1]} if dies_per_card > 1 else {})}


def thinned_steps(columns: Sequence[Sequence[float | None]], most: int = MOST_DRAWN) -> list[int]:
    """Return the indices of equally long columns to draw: all, or the extremes of each interval.

    Args:
        most: Indices to return at most; at least four for each column.
    """
    count = max((len(column) for column in columns), default=0)
    if count <= most:
        return list(range(count))
    stretches = max((most - 2) // (2 * len(columns)), 1)  # so many always fit, and most often more do
    kept = _extremes(columns, count, stretches)
    while 2 * stretches <= count and len(more := _extremes(columns, count, 2 * stretches)) <= most:
        kept, stretches = more, 2 * stretches
    return sorted(kept)


def _extremes(columns: Sequence[Sequence[float | None]], count: int, stretches: int) -> set[int]:
    """Return the first and last index, and the indices of each column's lowest and highest value per interval."""
    kept = {0, count - 1}
    for stretch in range(stretches):
        first, end = (count * edge // stretches for edge in (stretch, stretch + 1))
        for column in columns:
            known = [(value, index) for index in range(first, end) if (value := column[index]) is not None]
            if known:
                kept.update((min(known)[1], max(known)[1]))
    return kept


def _with_throughput(point: Point, dies_per_card: int) -> Point:
    data = with_throughput(point.data, dies_per_card)
    took = seconds(point.data)
    return replace(point, data=data if took is None else {**data, "timing_s/step": took})


def _validations(points: Iterable[Point]) -> list[_Plan]:
    """Return the chart of validations, if the run has any. Its metrics are named after the data sources."""
    keys = dict.fromkeys(key for point in points for key in point.data if key.startswith(_VALIDATION))
    if not keys:
        return []
    chosen = tuple(_Wanted(_label(key), (key,)) for key in list(keys)[:_MOST_VALIDATIONS])
    more = len(keys) - len(chosen)
    unit = "as the trainer names it" + (f"; {more} more in metrics.jsonl" if more else "")
    return [_Plan("validation", "Validation", unit, chosen)]


def _label(key: str) -> str:
    """Return a metric's name for a legend, which scripts write, too: a source of data may be called anything."""
    name = one_line(key)
    return name if len(name) <= _LONGEST_LABEL else f"{name[:_LONGEST_LABEL]}..."


def _panel(
    plan: _Plan, ours: Sequence[Point], theirs: Sequence[Point], name: str, published: Mapping[str, float]
) -> MetricPanel:
    by_step = [{point.step: point.data for point in points} for points in (ours, theirs)]
    steps = sorted({*by_step[0], *by_step[1]})
    series: list[MetricSeries] = []
    not_finite: tuple[set[int], set[int]] = (set(), set())
    for wanted in plan.metrics:
        for other, data in enumerate(by_step):
            key = next((key for key in wanted.keys if any(key in of for of in data.values())), None)
            if key is None:
                continue
            raw = [data.get(step, {}).get(key) for step in steps]
            not_finite[other].update(
                step
                for step, value in zip(steps, raw, strict=True)
                if value is not None and not math.isfinite(value)
            )
            finite = tuple(value if value is not None and math.isfinite(value) else None for value in raw)
            label = f"{name}: {wanted.name}" if other else wanted.name
            series.append(MetricSeries(label, key, finite, bool(other)))
    drawn = [
        index for index in range(len(steps)) if any(one.values[index] is not None for one in series)
    ]  # a chart of validations has their steps only
    if not drawn:  # each of its values is NaN or infinite
        series = []
    colours = {key: place for place, wanted in enumerate(plan.metrics) for key in wanted.keys}
    series = [
        replace(one, values=tuple(one.values[index] for index in drawn), colour=colours[one.key])
        for one in series
    ]
    steps = [steps[index] for index in drawn]
    kept = thinned_steps([one.values for one in series])
    return MetricPanel(
        plan.id,
        plan.title,
        plan.unit,
        tuple(wanted.keys[0] for wanted in plan.metrics),
        tuple(steps[index] for index in kept),
        tuple(replace(one, values=tuple(one.values[index] for index in kept)) for one in series),
        len(steps),
        tuple(sorted(not_finite[0])),
        tuple(sorted(not_finite[1])),
        _limits(plan, series, published),
    )


def _limits(
    plan: _Plan, series: Sequence[MetricSeries], published: Mapping[str, float]
) -> tuple[tuple[str, float], ...]:
    """Return the published values for a chart's series."""
    found = {}
    for wanted in plan.metrics:
        if any(one.key in wanted.keys and not one.other for one in series):
            value = next((published[key] for key in wanted.keys if key in published), None)
            if value is not None:
                found[f"published: {wanted.name}"] = value
    return tuple(found.items())
