"""Counts of what was recomputed, of what was not and why, and of hooks, among the counts of stand-ins.

One name per line (`npu_rl_standins.used`); npu_rl/rehearsal/training_checks/recomputed_steps.py knows the spellings.
"""

from __future__ import annotations

from npu_rl_standins.used import count


def compared(quantity: str) -> None:
    """Count one comparison of a quantity: of a whole batch, or of a micro batch."""
    count(f"recomputed: {quantity}")


def not_recomputed(quantity: str, why: str) -> None:
    """Count a quantity that was left out."""
    count(f"not recomputed: {quantity}: {why}")


def hook_used(place: str) -> None:
    """Count one use of a class or function with a hook that has to compare something before the step ends."""
    count(f"recompute hook used: {place}")


def hook_fired(place: str) -> None:
    """Count one comparison by the hook of a class or function."""
    count(f"recompute hook fired: {place}")
