"""Limits on probability differences between vLLM's engine and the actor with equal weights."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.training.monitor.metrics import DIFFERENCE, Point
from npu_rl.training.run.train import TransferLimits

_FIRST = 0.002
_KL = "actor/kl_loss"
_FIRST_KL = 3e-4
"""Of the first update, whose actor has the weights of its reference. On FSDP verl loads the reference in bfloat16, and
the actor in float32: 6e-5 to 1.2e-4 for ten seeds of the tiny DeepSeek-V3; else 0. An update's pass without the
temperature of 0.9 made 0.00055.
"""
ENGINE_LIMITS = TransferLimits(first=_FIRST, later=0.04)
"""Measured in the first step, on the checkpoint's weights: 0.0005, as bfloat16 rounds; 0.0128 with MindSpeed's scale of
the softmax. Later: up to 0.02 in single steps, when rounding sends a token to another expert.
"""


def require_update_as_reference(points: Sequence[Point], where: Path) -> None:
    """Check the pass of the first update, which the comparison with the rollout doesn't include.

    Where the trainer computes a KL loss, the reference's pass is one without gradients; the update's is in training
    mode, with recomputation.

    Raises:
        NpuRlError: If the first step has a KL loss between the actor and its reference.
    """
    first = min(points, key=lambda point: point.step, default=None)
    found = first.data.get(_KL, 0.0) if first else 0.0
    if first and not abs(found) <= _FIRST_KL:
        raise NpuRlError(
            "The actor's update computes other probabilities than its reference",
            where=str(where),
            why=f"{_KL} is {found:.2g} in step {first.step} (limit {_FIRST_KL:g}), before any update: both have the "
            "checkpoint's weights. The pass of the update differs, as by a temperature, a dropout or a recomputation.",
        )


def require_differences(points: Sequence[Point], where: Path) -> None:
    """Check the differences that the trainer reported over all steps.

    Single steps may differ by much more than rounding (ENGINE_LIMITS), and most steps do not: in 24 trainings the
    median of the later steps was 0.0003 to 0.001. A softmax scale that goes wrong in the second step made 0.0036.

    Args:
        points: The metrics of each step.
        where: Folder of the record.

    Raises:
        NpuRlError: If no step has a difference, or most steps after the first have a large one.
    """
    found = {point.step: point.data[DIFFERENCE] for point in points if DIFFERENCE in point.data}
    if not found:
        raise NpuRlError(
            "The trainer did not report the difference between the probabilities of rollout and actor",
            where=str(where),
            why=f"No step has {DIFFERENCE}, so their results could not be compared.",
        )
    later = [found[step] for step in sorted(found)[1:]]
    if len(points) > 1 and not later:
        raise NpuRlError(
            "The trainer stopped reporting the difference between the probabilities of rollout and actor",
            where=str(where),
            why=f"Only step {min(found)} of {len(points)} has {DIFFERENCE}.",
        )
    if later and (median := statistics.median_low(later)) > _FIRST:
        raise NpuRlError(
            "Rollout and actor give tokens different probabilities after the first step",
            where=str(where),
            why=f"{DIFFERENCE} has a median of {median:.4g} in the {len(later)} later steps (limit {_FIRST:g}), "
            f"and was {found[min(found)]:.4g} in the first. The weights were equal at each sync, so that one side "
            "computes in another way since.",
        )
