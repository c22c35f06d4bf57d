"""Limits on probability differences between vLLM's engine and the actor with equal weights."""

from __future__ import annotations

from npu_rl.common.errors import NpuRlError
from npu_rl.training.monitor.metrics import DIFFERENCE
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.train import TransferLimits

ENGINE_LIMITS = TransferLimits(first=0.002, later=0.04)
"""Measured in the first step, on the checkpoint's weights: 0.0005, as bfloat16 rounds; 0.0128 with MindSpeed's scale of
the softmax. Later: up to 0.017 while the tiny model learns, when rounding sends a token to another expert.
"""


def require_differences(record: RunRecord) -> None:
    """Raise NpuRlError if the trainer reported no difference, so that their results could not be compared."""
    if not any(DIFFERENCE in point.data for point in record.curve()):
        raise NpuRlError(
            "The trainer did not report the difference between the probabilities of rollout and actor",
            where=str(record.folder),
            why=f"No step has {DIFFERENCE}, so their results could not be compared.",
        )
