"""Adaptation kv-cache-reuse: a KV cache that is allocated again has exactly the blocks of the first one.

`EngineCore._initialize_kv_caches` (vllm/v1/engine/core.py@v0.9.1) profiles, stores the KV cache configurations in a
local variable, and sets up the scheduler's block pool from them, once. A later call profiles with other free memory and
gets another number of blocks; the pool still assigns the old ones, whose contents are written past the end of the
cache. So the first configurations are kept on the engine core and used for every later KV cache.
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
    """Return the KV cache configurations of this engine's first start (vLLM's KVCacheConfig, one per worker).

    The first call keeps a copy of `configs` and returns `configs`; each later call returns a copy of the kept ones,
    because a model runner may modify them. While the adaptation is off, returns `configs`.
    Raises RuntimeError if the new configurations have other layers than the kept ones.
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
    """Return a copy of the first start's configurations; None if they were not kept (no patch, or switched off)."""
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
