"""Reward curves as text: braille dots if the terminal's encoding has them, else ASCII."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from npu_rl.training.monitor.metrics import Point, rewards

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of braille: rows of (left, right)
_BRAILLE = 0x2800
_LARGEST = 1e300  # values are clipped to it, so that their differences are finite


def final_curve(
    points: Sequence[Point],
    width: int = 72,
    height: int = 12,
    goal: float | None = None,
    *,
    encoding: str | None = None,
) -> str:
    """Return the mean reward over the steps as lines of text; "" without any reward.

    Args:
        height: Lines of the plot; two more label the steps.
        goal: Reward to mark with a broken line.
        encoding: The terminal's encoding, by default that of standard output.
    """
    pairs = [(step, min(max(value, -_LARGEST), _LARGEST)) for step, value in rewards(points)]
    if not pairs:
        return ""
    encoding = encoding if encoding is not None else (getattr(sys.stdout, "encoding", None) or "ascii")
    fine = _can_show("⡇│└─┄", encoding)
    low, high = _range([value for _, value in pairs], goal)
    rows = max(height, 2)
    labels = _labels(low, high, rows, goal)
    margin = max(len(text) for text in labels)
    columns = max(width - margin - 2, 10)
    grid = _Grid(columns, rows, fine)
    if goal is not None:
        grid.mark(_dot(goal, low, high, grid.height))
    first, last = pairs[0][0], pairs[-1][0]
    dots = [
        (_dot(step, first, last, grid.width), _dot(value, low, high, grid.height)) for step, value in pairs
    ]
    grid.line(dots)
    bar, corner, dash = ("│", "└", "─") if fine else ("|", "+", "-")
    lines = [f"{label:>{margin}} {bar}{row}".rstrip() for label, row in zip(labels, grid.rows(), strict=True)]
    lines.append(f"{'':>{margin}} {corner}{dash * columns}")
    left, right = f"step {first}", str(last) if last != first else ""
    lines.append(f"{'':>{margin}}  {left}{right:>{max(columns - len(left), len(right) + 1)}}".rstrip())
    return "\n".join(lines)


def two_curves(first: Sequence[Point], second: Sequence[Point], width: int = 72, height: int = 14) -> str:
    """Return the mean rewards of two runs over their steps in one plot of ASCII letters; "" without any reward.

    The first run's line is of `A`, the second's of `B`, and `#` where they meet.

    Args:
        first, second: Metrics by step.
        width: Columns.
        height: Lines of the plot; two more label the steps.
    """
    lines = {
        letter: [(step, min(max(value, -_LARGEST), _LARGEST)) for step, value in rewards(points)]
        for letter, points in (("A", first), ("B", second))
    }
    pairs = [pair for line in lines.values() for pair in line]
    if not pairs:
        return ""
    steps = [step for step, _ in pairs]
    low, high = _range([value for _, value in pairs], None)
    rows = max(height, 2)
    labels = _labels(low, high, rows, None)
    margin = max(map(len, labels))
    columns = max(width - margin - 2, 10)
    cells: dict[tuple[int, int], str] = {}
    for letter, line in lines.items():
        dots = [(_dot(x, min(steps), max(steps), columns), _dot(y, low, high, rows)) for x, y in line]
        for cell in _joined(dots):
            cells[cell] = letter if cells.get(cell, letter) == letter else "#"
    drawn = ["".join(cells.get((x, y), " ") for x in range(columns)) for y in reversed(range(rows))]
    text = [f"{label:>{margin}} |{row}".rstrip() for label, row in zip(labels, drawn, strict=True)]
    left, right = f"step {min(steps)}", str(max(steps)) if max(steps) != min(steps) else ""
    text.append(f"{'':>{margin}} +{'-' * columns}")
    text.append(f"{'':>{margin}}  {left}{right:>{max(columns - len(left), len(right) + 1)}}".rstrip())
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


class _Grid:
    """A grid of characters with dots: 2 x 4 per character in braille, one in ASCII. Row 0 is at the bottom."""

    def __init__(self, columns: int, rows: int, fine: bool) -> None:
        self._fine, self._columns, self._rows = fine, columns, rows
        self.width, self.height = (columns * 2, rows * 4) if fine else (columns, rows)
        self._dots: set[tuple[int, int]] = set()
        self._goal: int | None = None

    def mark(self, y: int) -> None:
        """Mark the row of the goal."""
        self._goal = y

    def line(self, dots: Sequence[tuple[int, int]]) -> None:
        """Set the dots, and the dots on the lines between neighbours."""
        self._dots |= _joined(dots)

    def rows(self) -> list[str]:
        """Return the lines, top line first."""
        return [self._row(number) for number in reversed(range(self._rows))]

    def _row(self, number: int) -> str:
        return "".join(self._cell(column, number) for column in range(self._columns))

    def _cell(self, column: int, row: int) -> str:
        goal_here = self._goal is not None and self._goal // (4 if self._fine else 1) == row
        if not self._fine:
            return "*" if (column, row) in self._dots else "-" if goal_here and column % 2 else " "
        bits = 0
        for down, pair in enumerate(_DOTS):
            for right, bit in enumerate(pair):
                if (column * 2 + right, row * 4 + 3 - down) in self._dots:
                    bits |= bit
        return chr(_BRAILLE + bits) if bits else "┄" if goal_here else " "


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


def _labels(low: float, high: float, rows: int, goal: float | None) -> list[str]:
    """Return the row labels, top row first: highest, middle and lowest value, and the goal."""
    labels = [""] * rows
    for place in (0, (rows - 1) // 2, rows - 1):
        share = place / (rows - 1)
        labels[place] = f"{high * (1 - share) + low * share:.3g}"
    if goal is not None:
        labels[rows - 1 - _dot(goal, low, high, rows)] = f"goal {goal:.3g}"
    return labels


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
