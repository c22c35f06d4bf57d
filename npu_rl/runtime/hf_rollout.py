"""Adaptation hf-rollout-repeats-once: how many responses transformers generates per row of a batch.

The trainer repeats each prompt `rollout.n` times before it generates. verl 0.5.0 asks transformers
for n of each again, and the step fails (verl/workers/rollout/hf_rollout.py:88 of the release 0.5.0).
"""

from __future__ import annotations

from .switches import enabled
from .used import count

SLUG = "hf-rollout-repeats-once"


def answers_per_row(n: int) -> int:
    """1, or n as upstream has it while the adaptation is off. n: `actor_rollout_ref.rollout.n`."""
    if not enabled(SLUG):
        return n
    count(SLUG)
    return 1
