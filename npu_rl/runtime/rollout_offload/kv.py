"""Free the KV cache, and allocate it again with exactly the blocks of the first start."""

from __future__ import annotations

from typing import Any

from .parts import Parts

# Lists of the GPU's and CPU's model runner that `initialize_kv_cache` fills, and asserts to be empty before
# (vllm/v1/worker/gpu_model_runner.py:2055@v0.9.1, vllm/v1/utils.py:666).
_FILLED = ("kv_caches", "attn_backends", "attn_metadata_builders")
# Where an attention's impl keeps parts of its layer's cache (vllm_ascend/attention/attention_v1.py@v0.9.1rc2).
_IN_ATTENTION = ("key_cache", "value_cache")


def free(parts: Parts) -> int:
    """Free every layer's KV cache. Returns the freed bytes."""
    import torch

    freed: int = sum(one.numel() * one.element_size() for one in _tensors(parts.runner.kv_caches))
    for name in _FILLED:
        getattr(parts.runner, name, []).clear()
    for layer in parts.attention_layers():
        layer.kv_cache = [torch.empty(0)] * len(layer.kv_cache)
        for name in _IN_ATTENTION:
            if getattr(layer.impl, name, None) is not None:
                setattr(layer.impl, name, None)
    return freed


def create(parts: Parts) -> None:
    """Allocate the KV cache with the first start's configurations, and bind it to the layers.

    Calls the worker only. `Executor.initialize_from_config` (vllm/v1/executor/abstract.py:58@v0.9.1) would also warm up
    and capture graphs again, which takes minutes per step, and reset the seed, so that every step drew the same
    samples. Raises RuntimeError if the number of blocks differs from the scheduler's.
    """
    configs = parts.kv_cache_configs()
    pool = parts.core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    if configs[0].num_blocks != pool:
        raise RuntimeError(
            f"rollout-offload: the KV cache of the first start had {configs[0].num_blocks} blocks, but the scheduler "
            f"hands out {pool}: requests would write over each other. Nothing may change the engine's scheduler or its "
            f"cache_config after it was made."
        )
    free(parts)  # what an attempt that failed has left
    parts.executor.collective_rpc("initialize_from_config", args=(configs,))


def shapes(parts: Parts) -> list[tuple[int, ...]]:
    """Return the shapes of all layers' KV caches, in the runner's order."""
    return [tuple(one.shape) for one in _tensors(parts.runner.kv_caches)]


def _tensors(caches: Any) -> list[Any]:
    """Return the tensors of a layer's cache: one, or on NPUs a tuple or list of two."""
    found: list[Any] = []
    for one in caches:
        found += _tensors(one) if isinstance(one, (tuple, list)) else [one]
    return found
