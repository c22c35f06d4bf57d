"""A chart as static SVG, for pages without scripts and for printing. Colours come from the page's classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from npu_rl.training.report.markup import Markup, joined, tag
from npu_rl.training.report.metric_panels import MetricPanel, MetricSeries

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 10, 24
_LARGEST = 1e300  # values are clipped to it, so that their differences are finite
_SMALLEST = 1e-290  # range of an axis, so that a part of it is not zero


def static_chart(panel: MetricPanel, marks: Sequence[int]) -> Markup:
    """Return a panel with at least one value as SVG.

    Args:
        marks: Steps to mark with a line, those of alarms.
    """
    drawn = [value for one in panel.series for value in one.values if value is not None]
    low, high = _range([*drawn, *(value for _, value in panel.limits)])
    first, last = panel.steps[0], panel.steps[-1]

    def x(step: int) -> float:
        share = 0.5 if first == last else (step - first) / (last - first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        share = (_clipped(value) - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    lines = [
        *(_level(value, y(value)) for value in _ticks(low, high)),
        *(_edge(step, x(step), end) for step, end in ((first, "start"), (last, "end"))),
        *(_mark(x(step)) for step in marks if first <= step <= last),
        *(
            tag("path", d=f"M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}", class_="limit")
            for _, value in panel.limits
        ),
    ]
    for one in panel.series:
        points = [
            None if value is None else (x(step), y(value))
            for step, value in zip(panel.steps, one.values, strict=True)
        ]
        lines.append(tag("path", d=_path(points), class_=line_class(one)))
    return tag(
        "svg",
        joined(lines),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{panel.title} over the steps {first} to {last}",
        class_="chart",
    )


def line_class(series: MetricSeries) -> str:
    """Return the page's classes for a series: its metric's colour, and dashes for the other run."""
    return f"line s{series.colour}" + (" other" if series.other else "")


def number_text(value: float) -> str:
    """Format a number with four significant digits."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.1f}"
    return f"{value:.4g}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis. They are never equal."""
    low, high = (_clipped(end(values)) for end in (min, max))
    if high - low < _SMALLEST:
        pad = max(abs(low) / 2, abs(high) / 2)
        pad = pad if pad >= _SMALLEST else 1.0
        return low - pad, high + pad
    pad = (high - low) * 0.04
    return low - pad, high + pad


def _clipped(value: float) -> float:
    return min(max(value, -_LARGEST), _LARGEST)


def _ticks(low: float, high: float) -> list[float]:
    """Return a few round values between two numbers."""
    rough = (high - low) / 4
    scale = 10.0 ** math.floor(math.log10(rough))
    pace = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= rough)
    start = math.ceil(low / pace)
    return [(start + place) * pace for place in range(math.floor(high / pace) - start + 1)]


def _level(value: float, y: float) -> Markup:
    label = tag("text", f"{value:,.6g}", x=str(_LEFT - 6), y=f"{y + 4:.1f}", text_anchor="end")
    return joined([tag("path", d=f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}", class_="grid"), label])


def _edge(step: int, x: float, end: str) -> Markup:
    return tag("text", f"step {step}", x=f"{x:.1f}", y=str(_HEIGHT - 6), text_anchor=end)


def _mark(x: float) -> Markup:
    return tag("path", d=f"M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}", class_="mark")


def _path(points: Iterable[tuple[float, float] | None]) -> str:
    """Return the path through points, skipping missing ones. A single point becomes a dot."""
    known = [point for point in points if point is not None]
    text = "".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(known))
    return f"{text}h.1" if len(known) == 1 else text
