"""Adaptation hf-rollout-repeats-once: transformers generates one response per row of a repeated batch.

The trainer repeats each prompt `rollout.n` times before it generates. verl 0.5.0 makes transformers generate
n responses per row again, and the step fails (verl/workers/rollout/hf_rollout.py:88 of the release 0.5.0).
"""

from __future__ import annotations

from .switches import enabled
from .used import count

SLUG = "hf-rollout-repeats-once"


def answers_per_row(n: int) -> int:
    """Return 1, or upstream's n while the adaptation is off. n: `actor_rollout_ref.rollout.n`."""
    if not enabled(SLUG):
        return n
    count(SLUG)
    return 1
