"""Adaptation kv-cache-reuse: a KV cache that is made again is the one of the first start, block for block.

`EngineCore._initialize_kv_caches` (vllm/v1/engine/core.py@v0.9.1) profiles, computes the configurations of the KV cache
into a local name, and sets the scheduler's block pool up by them, once. A later call profiles another memory and finds
another number of blocks; the pool goes on handing out the old ones, and what they hold is written past the cache's end.
So the first configurations are kept on the engine core and used for every KV cache after it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from .switches import enabled
from .used import count

SLUG = "kv-cache-reuse"
_KEPT = "_npu_rl_kv_cache_configs"


def first(engine_core: Any, configs: list[Any]) -> list[Any]:
    """The configurations (vLLM's KVCacheConfig, one per worker) of this engine's first start.

    The first call keeps a copy of `configs` and returns `configs`; each later one returns a copy of what was kept,
    for a model runner may write into what it is given. While the adaptation is off, `configs` it is.
    Raises RuntimeError if the new configurations are of other layers than the kept ones.
    """
    if not enabled(SLUG):
        return configs
    count(SLUG)
    before = kept(engine_core)
    if before is None:
        setattr(engine_core, _KEPT, copy.deepcopy(configs))
        return configs
    _same_layers(before, configs)
    return before


def kept(engine_core: Any) -> list[Any] | None:
    """A copy of the configurations of the first start; None where none were kept (no patch, or switched off)."""
    found: list[Any] | None = copy.deepcopy(getattr(engine_core, _KEPT, None))
    return found


def _same_layers(before: Sequence[Any], now: Sequence[Any]) -> None:
    old, new = ([sorted(_layers(config)) for config in configs] for configs in (before, now))
    if old == new:
        return
    gone = sorted(
        {layer for layers in old for layer in layers} - {layer for layers in new for layer in layers}
    )
    added = sorted(
        {layer for layers in new for layer in layers} - {layer for layers in old for layer in layers}
    )
    raise RuntimeError(
        f"The KV cache can't be made again as it was: at the first start it was for {len(old)} worker(s) and "
        f"{sum(map(len, old))} layers, now for {len(new)} and {sum(map(len, new))} "
        f"(gone: {_some(gone)}; new: {_some(added)}). An engine's model may not change: make a new engine."
    )


def _layers(config: Any) -> set[str]:
    return {name for group in config.kv_cache_groups for name in group.layer_names}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "") if names else "none"
