"""Reward curves as text that any terminal can show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from npu_rl.training.monitor.metrics import Point, rewards

_LARGEST = 1e300  # values are clipped to it, so that their differences are finite


def final_curve(points: Sequence[Point], goal: float | None = None, width: int = 72, height: int = 12) -> str:
    """Return the mean reward over the steps as lines of text; "" without any reward.

    Args:
        points: Metrics by step.
        goal: Reward to mark with a broken line.
        width: Columns.
        height: Lines of the plot, at least 2; two more label the steps.
    """
    return _plot({"*": points}, goal, width, height)


def two_curves(first: Sequence[Point], second: Sequence[Point]) -> str:
    """Return the mean rewards of two runs in one plot, `A` and `B`, and `#` where they meet; "" without any reward."""
    return _plot({"A": first, "B": second}, None, 72, 14)


def _plot(runs: Mapping[str, Sequence[Point]], goal: float | None, width: int, height: int) -> str:
    lines = {
        sign: [(step, min(max(value, -_LARGEST), _LARGEST)) for step, value in rewards(points)]
        for sign, points in runs.items()
    }
    steps = [step for line in lines.values() for step, _ in line]
    if not steps:
        return ""
    low, high = _range([value for line in lines.values() for _, value in line], goal)
    labels = {
        0: low,
        (height - 1) // 2: low + (high - low) * ((height - 1) // 2) / (height - 1),
        height - 1: high,
    }
    texts = {row: f"{value:.3g}" for row, value in labels.items()}
    cells: dict[tuple[int, int], str] = {}
    if goal is not None:
        row = _dot(goal, low, high, height)
        texts[row] = f"goal {goal:.3g}"
        cells = {(column, row): "-" for column in range(1, width, 2)}
    margin = max(map(len, texts.values()))
    columns = max(width - margin - 2, 10)
    drawn: dict[tuple[int, int], str] = {}
    for sign, line in lines.items():
        dots = [(_dot(x, min(steps), max(steps), columns), _dot(y, low, high, height)) for x, y in line]
        for cell in _joined(dots):
            drawn[cell] = "#" if drawn.get(cell, sign) != sign else sign
    cells |= drawn
    text = [
        f"{texts.get(y, ''):>{margin}} |{''.join(cells.get((x, y), ' ') for x in range(columns))}".rstrip()
        for y in reversed(range(height))
    ]
    first, last = f"step {min(steps)}", str(max(steps)) if max(steps) != min(steps) else ""
    text.append(f"{'':>{margin}} +{'-' * columns}")
    text.append(f"{'':>{margin}}  {first}{last:>{max(columns - len(first), len(last) + 1)}}".rstrip())
    return "\n".join(text)


def _joined(dots: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the dots, and the dots on the lines between neighbours."""
    found = set(dots[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(dots):
        pace = max(abs(x1 - x0), abs(y1 - y0), 1)
        found.update(
            (round(x0 + (x1 - x0) * i / pace), round(y0 + (y1 - y0) * i / pace)) for i in range(pace + 1)
        )
    return found


def _range(values: list[float], goal: float | None) -> tuple[float, float]:
    """Return the lowest and highest value to show. They are never equal."""
    shown = [*values, goal] if goal is not None else values
    low, high = min(shown), max(shown)
    if low >= 0 and low < 0.3 * high:
        low = 0.0
    if high - low > 1e-12 * max(abs(high), abs(low)):
        return low, high
    margin = abs(high) * 0.1 or 0.5
    return low - margin, high + margin


def _dot(value: float, low: float, high: float, count: int) -> int:
    """Return the index of the dot, out of `count`, that a value falls on."""
    share = (value - low) / (high - low) if high > low else 0.0
    return min(max(round(share * (count - 1)), 0), count - 1)
