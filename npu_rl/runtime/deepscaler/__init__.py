"""Adaptation deepscaler-reward: rule-based scores for competition problems, which verl 55e3c5b lacks.

`verl/utils/reward_score/__init__.py` has no case for the data source `deepscaler`. Its patch calls `scores` and
`compute_score`.
A recipe that names `npu_rl_runtime/rewards/deepscaler.py:compute_scores` as its reward function and `batch` as its
reward manager has a step's responses scored in one call, on every core; verl's default scores one after the other.
The switch is about verl's default function: a function that a recipe names is called either way.
"""

from __future__ import annotations

from ..switches import enabled
from .score import DATA_SOURCE, SLUG, compute_score, compute_scores

__all__ = ["compute_score", "compute_scores", "scores"]


def scores(data_source: str) -> bool:
    """Whether this adaptation scores responses to `data_source`: the data set's own name, while its switch is on."""
    return data_source == DATA_SOURCE and enabled(SLUG)
