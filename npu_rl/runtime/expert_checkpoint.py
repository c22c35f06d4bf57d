"""Adaptation expert-checkpoint: the first rank of those that have the same experts saves the model.

verl 54c9b73 lets the first data-parallel rank save (verl/utils/checkpoint/megatron_checkpoint_manager.py:235), which
has the experts of the first expert-parallel rank only. Megatron-LM's own save_checkpoint asks for the rank among those
with the same experts (megatron/training/checkpointing.py:331@core_r0.8.0).
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "expert-checkpoint"


def saves_model(mpu: Any) -> bool:
    """Whether this rank writes a file of the model. mpu: megatron.core.parallel_state, its groups formed."""
    if not enabled(SLUG):
        return bool(mpu.get_data_parallel_rank() == 0)
    count(SLUG)
    return bool(mpu.get_data_modulo_expert_parallel_rank() == 0)
