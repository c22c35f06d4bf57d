"""Show whether prefixes of an earlier step's weights stay cached where the engine doesn't sleep.

Made is verl's vLLMRollout (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b), or verl_patches' in its
place, with free_cache_engine off, up to vLLM's engine; noted is whether it caches prefixes. Then verl's own
FSDPVLLMShardingManager (verl/workers/sharding_manager/fsdp_vllm.py@55e3c5b) syncs the weights of a small module twice
to an engine that notes what it is asked for. vLLM empties the cache in `reset_prefix_cache` and `sleep`
(vllm/entrypoints/llm.py:1321@v0.9.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch_npu
from verl.workers.sharding_manager import fsdp_vllm
from witness_common import HasEngine, make_vllm_rollout, only_rank, show

STAND_INS = ("npu",)
ENVIRONMENT = {
    "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29557",
    "VLLM_USE_V1": "1", "VLLM_PLUGINS": "", "VLLM_VERSION": "0.9.1", "HF_HUB_OFFLINE": "0",
}  # fmt: skip

torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend names; the stand-in has no graphs
EMPTIES = {"reset_prefix_cache", "sleep"}


class Engine:
    """An engine that accepts weights and records all other calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append("wake_up")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        return [name for name, _ in weights]


def caches_prefixes() -> bool:
    """Return the attributes of vLLM's engine that verl uses."""
    found: list[bool] = []

    def without_a_device(engine_args: Any) -> None:
        found.append(engine_args.enable_prefix_caching)
        raise HasEngine

    make_vllm_rollout(without_a_device, max_num_seqs=1)
    return found[0]


def calls_of_two_syncs() -> list[str]:
    """Create the sharding manager from its parts, since its constructor needs device groups."""
    engine = Engine()
    one = fsdp_vllm.FSDPVLLMShardingManager.__new__(fsdp_vllm.FSDPVLLMShardingManager)
    one.module, one.inference_engine = torch.nn.Linear(2, 2), engine
    one.model_runner = SimpleNamespace(model=engine)
    one.rollout_config = SimpleNamespace(free_cache_engine=False)
    one.offload_param, one.device_mesh, one.base_sync_done = False, None, True
    fsdp_vllm.patch_vllm_moe_model_weight_loader = lambda model: None
    fsdp_vllm.get_device_id = lambda: "cpu"
    for _ in range(2):
        with one:
            pass
    return engine.calls


def main() -> dict[str, Any]:
    cached = caches_prefixes()
    calls = calls_of_two_syncs() if cached else []
    return {"fault": cached and not EMPTIES.intersection(calls), "prefixes cached": cached, "calls": calls}


if __name__ == "__main__":
    with only_rank():
        show(main)
