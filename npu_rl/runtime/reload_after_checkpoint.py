"""Adaptation reload-after-checkpoint: generation loads the actor's weights whenever they are not on the device.

verl_patches of cann-recipes-train bcd3be7 leave the weights on the device from an update to the next generation, and
load them only if `_should_load_megatron_model` is set: after start-up and after a validation
(verl_patches/workers/megatron_workers.py:423). But verl's save_checkpoint offloads them too
(verl/workers/megatron_workers.py:572@54c9b73), so the step after a checkpoint syncs weights from storage of size 0.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "reload-after-checkpoint"


def must_load(worker: Any) -> bool:
    """Return whether generation must load the weights of `worker`, whose parameters are offloaded between phases.

    worker: with `actor_module`, Megatron-core's DistributedDataParallel for each virtual pipeline stage.
    """
    if worker._should_load_megatron_model:
        return True
    if enabled(SLUG) and any(map(_offloaded, worker.actor_module)):
        count(SLUG)
        return True
    return False


def _offloaded(chunk: Any) -> bool:
    """Return whether a buffer of the chunk has been freed (verl_patches/utils/megatron_utils.py:58)."""
    return any(
        buffer.param_data.storage().size() == 0
        for buffers in (chunk.buffers, chunk.expert_parallel_buffers)
        for buffer in buffers
    )
