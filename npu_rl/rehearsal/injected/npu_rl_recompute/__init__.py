"""Recomputation of a training step in float64, from formulas of the papers and not from the trainer's code.

The driver's part (`driver_hooks`) recomputes what the trainer derives from prompts, responses and rewards; the worker's
part the loss and its gradient. A difference is written to the run's folder of usage counts and ends the run. What was
compared, and what was not and why, is counted there, too, for npu_rl/rehearsal/training_checks/recomputed_steps.py.
"""

from __future__ import annotations

import importlib.util


def install() -> None:
    """Register the hooks of all parts; nothing large is imported.

    A witness of a fault has batches of its own kind, and not `npu_rl_tensors`, which only a run has on its path.
    """
    if importlib.util.find_spec("npu_rl_tensors") is None:
        return
    from . import driver_hooks, loss_hooks, reference_weights, sampled_rows

    for part in (driver_hooks, loss_hooks, reference_weights, sampled_rows):
        part.install()
