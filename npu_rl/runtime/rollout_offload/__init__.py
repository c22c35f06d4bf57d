"""Adaptation rollout-offload: while the actor trains, the rollout's weights and KV cache leave the device.

verl lets vLLM sleep and wake. vLLM can do so only for what was allocated in a memory pool of its own (CaMem in
vllm-ascend), and that pool does not give its memory back on several nodes, nor to torch_npu's allocator
(vllm-project/vllm-ascend#977). Here the engine is made without that pool, and gets a `sleep` and a `wake_up` that drop
the tensors themselves. Their signatures are vLLM's, so verl's sharding managers call them unchanged
(verl/workers/sharding_manager/megatron_vllm.py@55e3c5b):

    wake_up(tags=["weights"])  →  model.load_weights(...)  →  wake_up(tags=["kv_cache"])  →  generate  →  sleep(level=2)

- `weights`: the model's matrices. Buffers and vectors stay; they are small, and need not be sent.
- `derived`: what vLLM computes from weights after loading them (MLA's absorbed projections).
- `kv`: the KV cache, made again by the configurations of the first start (`kv_cache_reuse`).
- `graph`: addresses in torchair's graphs. `parts`: where all this is in an engine, and which engines are refused.
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
    """Give `engine` (a vllm.LLM) the manual `sleep` and `wake_up`; using it asleep becomes an error.

    Once per engine; a second call changes nothing, and so does any call while the adaptation is off. Raises
    RuntimeError for an engine whose weights can't be taken away behind its back: see `find_parts`.
    """
    if not enabled(SLUG) or isinstance(getattr(engine.sleep, "__self__", None), ManualSleep):
        return
    manual = ManualSleep(find_parts(engine))
    manual.guard(engine.llm_engine)
    engine.sleep = manual.sleep
    engine.wake_up = manual.wake_up
