"""Slow changes from a run's first steps to its latest, such as a collapsing entropy.

Medians, since single steps jump: in 16 steps of a tiny mixture of experts the difference was 60 times the usual once.
"""

from __future__ import annotations

import statistics
from collections import deque

STEPS = 10  # of the beginning and of the end that are compared; never the same
_CLEARED = 1.5  # times back beyond its limit a value has to be before its alarm may come again


class Trend:
    """A metric's median over the first steps and over the latest, and whether the change between them is an alarm."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._latest: deque[float] = deque(maxlen=STEPS)
        self.is_alarm = False

    def add(self, value: float) -> None:
        """Add a step's value."""
        if len(self._first) < STEPS:
            self._first.append(value)
        else:
            self._latest.append(value)

    @property
    def medians(self) -> tuple[float, float] | None:
        """The median of the first steps and of the latest; None before there are enough."""
        if len(self._latest) < STEPS:
            return None
        return statistics.median(self._first), statistics.median(self._latest)

    @property
    def slack(self) -> float:
        """The factor by which a limit is easier to exceed: an alarm clears only well below it."""
        return _CLEARED if self.is_alarm else 1.0
