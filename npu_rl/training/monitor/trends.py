"""Slow changes from a run's first steps to its latest: collapsing entropy, rising probability differences.

Medians, since single steps jump: in 16 steps of a tiny mixture of experts the difference was 60 times the usual once.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from npu_rl.training.monitor.metrics import DIFFERENCE, reward

_STEPS = 10  # of the beginning and of the end that are compared; never the same
_COLLAPSED = 0.1  # share of the first entropy
_LEAST_ENTROPY = 0.01  # nats per token; a policy that begins below it has nothing to lose
_RISEN = 5.0  # times the first difference; the quickstart's, as a share of 1 / exp(entropy), rises 4-fold as it learns
_LEAST_DIFFERENCE = 0.01  # of a probability; below it a rise says nothing
_CLEARED = 1.5  # times back beyond its limit a value has to be before its alarm may come again
_NEARLY_BEST = 0.95  # share of the best reward of a response, from where the policy may be sure of itself


@dataclass(frozen=True)
class Trend:
    """The state of a trend after a step. `wrong` is true if the trend is an alarm."""

    wrong: bool
    first: float
    latest: float


class _Window:
    """The first and the latest values of a metric."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.latest: deque[float] = deque(maxlen=_STEPS)

    def add(self, value: float) -> bool:
        """Add a value. Returns whether there are enough values to compare."""
        if len(self.first) < _STEPS:
            self.first.append(value)
            return False
        self.latest.append(value)
        return len(self.latest) == _STEPS

    def medians(self) -> tuple[float, float]:
        return statistics.median(self.first), statistics.median(self.latest)


class EntropyTrend:
    """Entropy collapse: the policy becomes certain of its tokens, and stops exploring, before it has learnt."""

    def __init__(self) -> None:
        self._entropy, self._reward = _Window(), deque[float](maxlen=2 * _STEPS)
        self._wrong = False

    def take(self, data: Mapping[str, float], learnt: bool) -> Trend | None:
        """Add a step's metrics. Returns None before 20 steps with an entropy."""
        entropy, value = data.get("actor/entropy", data.get("actor/entropy_loss")), reward(data)
        if value is not None and math.isfinite(value):
            self._reward.append(value)
        if entropy is None or not math.isfinite(entropy) or not self._entropy.add(entropy):
            return None
        first, latest = self._entropy.medians()
        best = data.get("critic/score/max", data.get("critic/rewards/max", math.inf))
        solved = learnt or (value is not None and 0 < best <= value / _NEARLY_BEST)
        low = first >= _LEAST_ENTROPY and latest <= _COLLAPSED * first * (_CLEARED if self._wrong else 1)
        # Only the entropy clears it: the reward's noise would, and raise the alarm again, every few steps.
        self._wrong = low and (self._wrong or not (solved or self._rises()))
        return Trend(self._wrong, first, latest)

    def _rises(self) -> bool:
        values = list(self._reward)
        half = len(values) // 2
        return half > 0 and statistics.fmean(values[half:]) > statistics.fmean(values[:half])


class DifferenceTrend:
    """Drift between the token probabilities of rollout and trainer.

    They are compared with 1 / exp(entropy), which a token has on average: as a policy learns both rise.
    """

    def __init__(self) -> None:
        self._shares, self._differences = _Window(), _Window()
        self._wrong = False

    def take(self, data: Mapping[str, float]) -> Trend | None:
        """Add a step's metrics. Returns None before 20 steps with a difference."""
        difference = data.get(DIFFERENCE)
        entropy = data.get("actor/entropy", data.get("actor/entropy_loss", 0.0))
        if difference is None or not math.isfinite(difference) or not math.isfinite(entropy):
            return None
        self._differences.add(difference)
        if not self._shares.add(difference * math.exp(min(max(entropy, 0.0), 700.0))):
            return None
        (first, latest), (_, absolute) = self._shares.medians(), self._differences.medians()
        limit = 1 / _CLEARED if self._wrong else 1.0
        self._wrong = absolute >= _LEAST_DIFFERENCE * limit and latest >= _RISEN * first * limit
        return Trend(self._wrong, *self._differences.medians())
