"""Adaptation deepscaler-reward: a rule-based reward for competition problems, which verl 55e3c5b lacks.

`verl/utils/reward_score/__init__.py` has no case for the data source `deepscaler`. Its patch calls `scores` and
`compute_score`.
With `npu_rl_runtime/rewards/deepscaler.py:compute_scores` as a recipe's reward function and `batch` as its reward
manager, all responses of a step are scored in one call, on every core; verl's default scores them one by one.
The switch affects verl's default function only: a function that a recipe names is called either way.
"""

from __future__ import annotations

from ..switches import enabled
from .score import DATA_SOURCE, SLUG, compute_score, compute_scores

__all__ = ["compute_score", "compute_scores", "scores"]


def scores(data_source: str) -> bool:
    """Return whether this adaptation scores responses to `data_source`: if it is `deepscaler` and the switch is on."""
    return data_source == DATA_SOURCE and enabled(SLUG)
