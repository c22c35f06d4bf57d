"""A recreated KV cache has a number of blocks that differs from what vLLM's scheduler allocates.

Called is EngineCore._initialize_kv_caches (vllm/v1/engine/core.py@v0.9.1), with vLLM's own functions for configurations
and its own block pool. The executor is made here: it reports less memory, then more, at later profiles, as an engine
does beside a training. "calls" has for each call the blocks in the executor's cache, the blocks returned to the engine,
and whether every block that the first call's pool hands out is in the cache.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec
from witness_common import show

ENVIRONMENT = {"VLLM_PLUGINS": ""}

MEMORY = [64 * 1024, 48 * 1024, 96 * 1024]


class Executor:
    """One worker with two layers."""

    def __init__(self) -> None:
        self.profiles = iter(MEMORY)
        self.cache: Any = None

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32, use_mla=True)
        return [dict.fromkeys(["model.layers.0.attn", "model.layers.1.attn"], spec)]

    def determine_available_memory(self) -> list[int]:
        return [next(self.profiles)]

    def initialize_from_config(self, configs: list[Any]) -> None:
        (config,) = configs
        self.cache = torch.zeros(config.num_blocks)
        config.kv_cache_groups[0].layer_names.append("a layer that shares its cache")  # as a runner may


def main() -> dict[str, Any]:
    core = EngineCore.__new__(EngineCore)
    core.model_executor = Executor()
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=32),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None, block_size=4),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
    )
    pool = None
    found = []
    for _ in MEMORY:
        blocks, _, _ = core._initialize_kv_caches(config)
        pool = pool or BlockPool(blocks, enable_caching=False)
        handed_out = [block.block_id for block in pool.blocks]
        found.append(
            [len(core.model_executor.cache), blocks, max(handed_out) < len(core.model_executor.cache)]
        )
    return {"fault": not all(whole for *_, whole in found), "calls": found}


if __name__ == "__main__":
    show(main)
