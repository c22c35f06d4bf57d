"""Adaptation expert-checkpoint: the first rank of each expert-data-parallel group saves its part of the model.

In verl 54c9b73 the first data-parallel rank saves (verl/utils/checkpoint/megatron_checkpoint_manager.py:235), which has
the experts of the first expert-parallel rank only. Megatron-LM's own save_checkpoint uses the rank among those with the
same experts (megatron/training/checkpointing.py:331@core_r0.8.0).
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "expert-checkpoint"


def saves_model(mpu: Any) -> bool:
    """Return whether this rank writes a file of the model.

    mpu: megatron.core.parallel_state, after its groups were formed.
    """
    if not enabled(SLUG):
        return bool(mpu.get_data_parallel_rank() == 0)
    count(SLUG)
    return bool(mpu.get_data_modulo_expert_parallel_rank() == 0)
