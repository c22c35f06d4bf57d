"""The sections of a report: head, alarms, charts, figures, steps, samples and attempts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from npu_rl.common.printable import counted
from npu_rl.training.monitor.metrics import PHASES, Point, reward, seconds
from npu_rl.training.record.recorded_attempt import RecordedAlarm
from npu_rl.training.report.gather_report import GatheredRun
from npu_rl.training.report.markup import Markup, folded, joined, section, table, tag
from npu_rl.training.report.metric_panels import OTHER_PHASES, MetricPanel, memory_keys, with_throughput
from npu_rl.training.report.published_rows import PER_CARD, PER_DIE
from npu_rl.training.report.report_samples import SampledStep
from npu_rl.training.report.static_chart import line_class, number_text, static_chart

_MOST_ROWS = 40  # steps in the table
_LAST = 10  # steps that a mean is taken of
_COLUMNS = (
    ("reward", ("critic/score/mean", "critic/rewards/mean")),
    ("response length", ("response_length/mean",)),
    ("entropy", ("actor/entropy", "actor/entropy_loss")),
    ("KL", ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl", "actor/ppo_kl")),
    ("rollout-trainer difference", ("training/rollout_probs_diff_mean",)),
    ("gradient norm", ("actor/grad_norm",)),
    ("seconds", ("timing_s/step", "perf/time_per_step")),
    ("tokens/s/die", (PER_DIE,)),
    ("tokens/s/card", (PER_CARD,)),
)


def head_section(run: GatheredRun, written: str) -> Markup:
    """Return the title, the key facts, and the figures of the last steps."""
    facts = run.facts
    manifest = facts.get("manifest")
    lines = [f"recipe {run.recorded.recipe.name}"]
    lines += [f"manifest {manifest}"] if isinstance(manifest, str) else []
    lines += [f"begun {facts['created']}"] if isinstance(facts.get("created"), str) else []
    parts = [
        tag("h1", f"Run {run.name}"),
        tag("p", f"{', '.join(lines)}; report written {written}", class_="soft"),
    ]
    if run.unproven is not None:
        text = f"UNPROVEN: it ran code that is not as locked. Reason given: {run.unproven}"
        parts.append(tag("p", text, class_="banner alert"))
    if isinstance(facts.get("rehearsal"), str):
        text = "A rehearsal on a CPU: model and sizes are scaled down, and its figures do not show the speed of a run."
        parts.append(tag("p", text, class_="banner"))
    if run.failure is not None:
        told = (
            ("Why it failed", run.failure.cause),
            ("where", run.failure.where),
            ("next", run.failure.hint),
        )
        lines = [tag("p", tag("b", f"{label}: "), text, class_="cause") for label, text in told if text]
        parts.append(tag("div", *lines, class_="banner alert", id="failure"))
    if run.missing:
        listed = tag("ul", *(tag("li", line) for line in run.missing))
        parts.append(tag("div", tag("b", "What is missing"), listed, class_="banner", id="missing"))
    return tag("header", *parts, _tiles(run))


def _tiles(run: GatheredRun) -> Markup:
    last = run.points[-1] if run.points else None
    total = run.recorded.recipe.steps
    steps = str(last.step if last else 0) + (f" of {total}" if total is not None else "")
    recent = run.points[-_LAST:]
    took = _mean([value for point in recent if (value := seconds(point.data)) is not None])
    rate = _mean([point.data["perf/throughput"] for point in recent if "perf/throughput" in point.data])
    has_cards = run.dies_per_card > 1
    ran = run.recorded.seconds
    nodes = run.recorded.nodes
    tiles = [
        ("state", run.state),
        ("steps", steps),
        ("last reward", _number(run.recorded.last_reward)),
        (f"seconds per step (last {_LAST})", _number(took)),
        (f"tokens/s/die (last {_LAST})", _number(rate)),
        *(
            [(f"tokens/s/card (last {_LAST})", _number(rate * run.dies_per_card))]
            if rate and has_cards
            else []
        ),
        ("time", "-" if ran is None else _duration(ran)),
        ("nodes", "-" if nodes is None else str(nodes)),
        ("alarms", str(len(run.alarms) + run.alarms_left_out)),
    ]
    shown = [
        tag("div", tag("span", name, class_="soft"), tag("b", value), class_="tile") for name, value in tiles
    ]
    return tag("div", *shown, class_="tiles")


def alarm_section(run: GatheredRun) -> Markup:
    """Return the section with every alarm and its step."""
    if not run.alarms:
        return section("Alarms", "alarms", tag("p", "No alarms.", class_="soft"))
    rows = [
        (
            "before the first" if alarm.step is None else str(alarm.step),
            alarm.kind + (" (ended the run)" if alarm.fatal else "") + often,
            alarm.message
            + ("\nA later attempt went on from an earlier step." if run.replaced(alarm) else ""),
            alarm.cause,
            alarm.hint,
            tag("code", alarm.place),
            f"{alarm.attempt}, {_clock(alarm.time)}",
        )
        for alarm, often in zip(run.alarms, _how_often(run.recorded.alarms), strict=False)
    ]
    heads = ("step", "alarm", "message", "likely cause", "what to do", "look at", "attempt, time")
    more = f"{run.alarms_left_out} more are in alarms.jsonl of the attempts." if run.alarms_left_out else ""
    return section("Alarms", "alarms", table(heads, rows), *([tag("p", more)] if more else []))


def _how_often(alarms: Sequence[RecordedAlarm]) -> list[str]:
    """Return for each alarm that its attempt raised several times for one cause which of them it is."""
    times = Counter((one.attempt, one.kind, one.cause) for one in alarms)
    totals = [times[one.attempt, one.kind, one.cause] for one in alarms]
    return [
        f"\ntime {one.count} of {total}" if total > 1 else ""
        for one, total in zip(alarms, totals, strict=True)
    ]


def alarm_steps(run: GatheredRun) -> list[int]:
    """Return the steps of alarms, for the charts, except steps that are left out."""
    return sorted({alarm.step for alarm in run.alarms if alarm.step is not None and not run.replaced(alarm)})


# -- charts --------------------------------------------------------------------------------------------


def chart_section(panels: Sequence[MetricPanel], marks: Sequence[int]) -> Markup:
    """Return the section with a chart of each panel."""
    figures = tag("div", *(_figure(panel, marks) for panel in panels), class_="charts")
    note = "Dashed red lines are steps with an alarm." if marks else ""
    return section("Charts", "charts", *([tag("p", note, class_="soft")] if note else []), figures)


def _figure(panel: MetricPanel, marks: Sequence[int]) -> Markup:
    title = tag("h3", panel.title)
    if not panel.series:
        names = ", ".join(panel.wanted)
        text = _not_finite(panel) or f"Not logged in this run: {names}"
        return tag("figure", title, tag("p", f"{text}.", class_="soft"))
    notes = [panel.unit] if panel.unit else []
    if len(panel.steps) < panel.of_steps:
        notes.append(
            f"{len(panel.steps):,} of {panel.of_steps:,} steps are drawn: the highest and lowest of each stretch"
        )
    if text := _not_finite(panel):
        notes.append(text)
    return tag(
        "figure",
        title,
        static_chart(panel, marks),
        _key(panel),
        tag("figcaption", "; ".join(notes)),
        id=f"chart-{panel.id}",
    )


def _not_finite(panel: MetricPanel) -> str:
    """Return a note on the steps whose values can't be drawn; empty without any."""
    both = (("", panel.not_finite), (" of the other run", panel.other_not_finite))
    places = [f"step {_listed(steps)}{whose}" for whose, steps in both if steps]
    return f"NaN or infinite, and not drawn, in {' and '.join(places)}" if places else ""


def _listed(steps: Sequence[int]) -> str:
    more = f" and {len(steps) - 20} more" if len(steps) > 20 else ""
    return ", ".join(map(str, steps[:20])) + more


def _key(panel: MetricPanel) -> Markup:
    """Return the legend of a chart, with the last value of each series."""
    items = []
    for one in panel.series:
        drawn = tag("path", d="M0 4H18", class_=line_class(one))
        swatch = tag("svg", drawn, viewBox="0 0 18 8", aria_hidden="true")
        last = next((value for value in reversed(one.values) if value is not None), None)
        items.append(tag("li", swatch, f"{one.name}: {_number(last)} at last"))
    items += [tag("li", f"{name}: {number_text(value)}") for name, value in panel.limits]
    return tag("ul", *items, class_="key")


# -- figures -------------------------------------------------------------------------------------------


def phase_section(run: GatheredRun) -> Markup:
    """Return the table with the time per phase in the first and the latest steps, and its share."""
    points = [point for point in run.points if seconds(point.data)]
    if not points:
        return section("Time per phase", "phases", tag("p", "No step has a duration.", class_="soft"))
    recent = points[-_LAST:]
    whole = _mean([seconds(point.data) or 0.0 for point in recent]) or 0.0
    rows = []
    for phase in (*PHASES, *OTHER_PHASES):
        key = f"timing_s/{phase}"
        mean = _mean([point.data[key] for point in recent if key in point.data])
        if mean is not None:
            at_first = points[0].data.get(key)
            share = f"{100 * mean / whole:.1f} %" if whole else "-"
            rows.append((phase, _number(at_first), _number(mean), share))
    rows.append(("step", _number(seconds(points[0].data)), _number(whole), "100 %"))
    heads = ("phase", f"step {points[0].step}, s", f"mean of the last {len(recent)}, s", "share of the step")
    note = "reshard is a part of gen; what is in no row is the trainer's own."
    return section(
        "Time per phase", "phases", table(heads, rows, class_="numbers"), tag("p", note, class_="soft")
    )


def step_section(run: GatheredRun) -> Markup:
    """Return the table of steps, spread over the run."""
    points = run.points
    if not points:
        return section("Steps", "steps", tag("p", "No step has finished.", class_="soft"))
    shown = _spread(points)
    data = [with_throughput(point.data, run.dies_per_card) for point in shown]
    columns = [(name, keys) for name, keys in _COLUMNS if any(key in one for one in data for key in keys)]
    rows = [
        (
            str(point.step),
            *(_number(next((one[key] for key in keys if key in one), None)) for _, keys in columns),
        )
        for point, one in zip(shown, data, strict=True)
    ]
    note = f"{len(shown)} of {len(points):,} steps; all are in metrics.jsonl of the attempts."
    content = table(("step", *(name for name, _ in columns)), rows, class_="numbers")
    return section(
        "Steps", "steps", content, *([tag("p", note, class_="soft")] if len(shown) < len(points) else [])
    )


def _spread(points: Sequence[Point]) -> list[Point]:
    if len(points) <= _MOST_ROWS:
        return list(points)
    places = (round(place * (len(points) - 1) / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS))
    return [points[place] for place in places]


# -- attempts, samples ---------------------------------------------------------------------------------


def attempt_section(run: GatheredRun) -> Markup:
    """Return the table of attempts, with the steps that later attempts replaced."""
    rows = []
    for attempt in run.attempts:
        steps = "none" if attempt.steps is None else _span(attempt.steps)
        cut = attempt.left_out
        again = "none" if cut is None else f"{_span(cut)}, since a later attempt went on from an earlier step"
        one = attempt.recorded
        rows.append(
            (str(attempt.number), _clock(one.started), _clock(one.ended), attempt.outcome, steps, again)
        )
    if not rows:
        return section("Attempts", "attempts", tag("p", "No attempt was begun.", class_="soft"))
    heads = ("attempt", "started", "ended", "outcome", "steps", "steps left out of the curves")
    return section("Attempts", "attempts", table(heads, rows))


def _span(steps: tuple[int, int]) -> str:
    first, last = steps
    return str(first) if first == last else f"{first} to {last}"


def sample_section(run: GatheredRun) -> Markup:
    """Return the samples of some steps as inert text."""
    if not run.samples:
        return section("Samples", "samples", tag("p", "None in the record.", class_="soft"))
    intro = (
        "The best, the worst and a random response of some steps over the run. Control and invisible characters are "
        "written as escapes; long texts are cut in the middle."
    )
    training = [one for one in run.samples if not one.validation]
    latest = (training or run.samples)[-1]
    parts = [_sampled(one, one is latest) for one in run.samples]
    return section("Samples", "samples", tag("p", intro, class_="soft"), *parts)


def _sampled(one: SampledStep, is_open: bool) -> Markup:
    kind = "Validation at step" if one.validation else "Step"
    looked = f"of {one.responses:,} responses" if one.whole else f"of the first {one.responses:,} responses"
    unread = f"; {counted(one.unread, 'line')} can't be read" if one.unread else ""
    shown = [
        tag(
            "div",
            tag("p", tag("b", sample.kind), f", reward {_number(sample.score)}"),
            tag("pre", sample.prompt),
            tag("pre", sample.response),
            class_="sample",
        )
        for sample in one.samples
    ]
    title = f"{kind} {one.step} ({looked}{unread})"
    return joined([tag("h3", title), *shown]) if is_open else folded(title, *shown)


# -- numbers -------------------------------------------------------------------------------------------


def comparable_means(run: GatheredRun, step: int | None) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return a step's metrics (empty if it was not logged), and the means of the last steps."""
    of_step: Mapping[str, float] = {}
    for point in run.points:
        if point.step == step:
            of_step = full_metrics(point, run.dies_per_card)
    recent = [full_metrics(point, run.dies_per_card) for point in run.points[-_LAST:]]
    keys = dict.fromkeys(key for one in recent for key in one)
    means = {key: _mean([one[key] for one in recent if key in one]) for key in keys}
    return of_step, {key: value for key, value in means.items() if value is not None}


def full_metrics(point: Point, dies_per_card: int) -> dict[str, float]:
    """Return a step's metrics, with values that have several names under the name used in tables."""
    data = with_throughput(point.data, dies_per_card)
    took, value = seconds(point.data), reward(point.data)
    data |= {} if took is None else {"timing_s/step": took}
    allocated, of_actor = memory_keys("allocated")
    data |= {allocated: data[of_actor]} if of_actor in data and allocated not in data else {}
    return data | ({} if value is None else {"critic/rewards/mean": data.get("critic/rewards/mean", value)})


def number_or_dash(value: float | None) -> str:
    """Format a number; None becomes a dash."""
    return _number(value)


def _number(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(value / len(finite) for value in finite) if finite else None  # the sum may not be finite


def _clock(when: float | None) -> str:
    try:
        return "-" if when is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
    except (ValueError, OverflowError, OSError):
        return "-"


def _duration(took: float) -> str:
    minutes, rest = divmod(round(min(took, 1e12)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
