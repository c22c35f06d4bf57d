"""Recomputation of a training step in float64, from formulas of the papers and not from the trainer's code.

The driver's part (`driver_hooks`) recomputes what the trainer derives from prompts, responses and rewards; the worker's
part the loss and its gradient. A difference is written to the run's folder of usage counts and ends the run. What was
compared, and what was not and why, is counted there, too, for npu_rl/rehearsal/training_checks/recomputed_steps.py.
"""

from __future__ import annotations


def install() -> None:
    """Register the hooks of all parts; nothing large is imported."""
    from . import driver_hooks

    driver_hooks.install()
