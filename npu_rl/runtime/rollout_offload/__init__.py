"""Adaptation rollout-offload: free the device memory of the rollout's weights and KV cache while the actor trains.

verl makes vLLM sleep and wake up. vLLM can free only tensors allocated in its own memory pool (CaMem in vllm-ascend),
and on several nodes that pool doesn't release its memory, nor does it release any to torch_npu's allocator
(vllm-project/vllm-ascend#977). Here the engine is created without that pool, and gets a `sleep` and a `wake_up` that
free the tensors themselves. They have vLLM's signatures, so verl's sharding managers call them unchanged
(verl/workers/sharding_manager/megatron_vllm.py@55e3c5b):

    wake_up(tags=["weights"])  →  model.load_weights(...)  →  wake_up(tags=["kv_cache"])  →  generate  →  sleep(level=2)

- `weights`: the model's matrices. Buffers and vectors stay; they are small, and need not be sent.
- `derived`: tensors that vLLM computes from weights after loading them (MLA's absorbed projections).
- `kv`: the KV cache, allocated again with the first start's configurations (`kv_cache_reuse`).
- `graph`: addresses in torchair's graphs. `parts`: access to these objects in an engine, and unsupported engines.
"""

from __future__ import annotations

from typing import Any

from ..switches import enabled
from .graph import frozen_parameter
from .manual_sleep import ManualSleep
from .parts import find_parts
from .slug import SLUG

__all__ = ["SLUG", "frozen_parameter", "install", "sleep_mode"]


def sleep_mode(free_cache_engine: bool) -> bool:
    """Return `enable_sleep_mode` for `LLM(...)`: False while the adaptation is on, else upstream's value.

    free_cache_engine: `actor_rollout_ref.rollout.free_cache_engine`.
    """
    return free_cache_engine and not enabled(SLUG)


def install(engine: Any) -> None:
    """Give `engine` (a vllm.LLM) the manual `sleep` and `wake_up`; using it while it sleeps raises an error.

    A second call for the same engine changes nothing, nor does any call while the adaptation is off. Raises
    RuntimeError for an engine whose weights can't be freed: see `find_parts`.
    """
    if not enabled(SLUG) or isinstance(getattr(engine.sleep, "__self__", None), ManualSleep):
        return
    manual = ManualSleep(find_parts(engine))
    manual.guard(engine.llm_engine)
    engine.sleep = manual.sleep
    engine.wake_up = manual.wake_up
