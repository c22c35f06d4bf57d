"""Adaptation deepscaler-reward: rule-based scores for competition problems, where verl 55e3c5b has none.

`verl/utils/reward_score/__init__.py` knows no data source `deepscaler`. Its patch asks `scores` and `compute_score`.
For whole batches, which every core works on, name `rewards/deepscaler.py:compute_scores` as the reward function and
`batch` as the reward manager.
"""

from __future__ import annotations

from ..switches import enabled
from .score import DATA_SOURCE, SLUG, compute_score, compute_scores

__all__ = ["compute_score", "compute_scores", "scores"]


def scores(data_source: str) -> bool:
    """Whether this adaptation scores answers of `data_source`: the data set's own name, while its switch is on."""
    return data_source == DATA_SOURCE and enabled(SLUG)
