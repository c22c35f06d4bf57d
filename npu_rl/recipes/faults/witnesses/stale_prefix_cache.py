"""Show whether prefixes of an earlier step's weights stay cached where the engine doesn't sleep.

Made is verl's vLLMRollout (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b), or verl_patches' in its
place, with free_cache_engine off, up to vLLM's engine; noted is whether it caches prefixes. Then verl's own
FSDPVLLMShardingManager (verl/workers/sharding_manager/fsdp_vllm.py@55e3c5b) syncs the weights of a small module twice
to an engine that notes what it is asked for. vLLM empties the cache in `reset_prefix_cache` and `sleep`
(vllm/entrypoints/llm.py:1321@v0.9.1).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

os.environ |= {
    "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29557",
    "VLLM_USE_V1": "1", "VLLM_PLUGINS": "",
}  # fmt: skip

import torch
import torch.distributed as dist
import torch_npu
from omegaconf import OmegaConf
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
from verl.workers.sharding_manager import fsdp_vllm
from vllm.entrypoints.llm import LLMEngine

torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend names; the stand-in has no graphs
if importlib.util.find_spec("verl_patches") is not None:  # puts its own function in place of verl's
    from verl_patches.workers.vllm_rollout.vllm_rollout_spmd import __init__ as of_patches

    vllm_rollout_spmd.vLLMRollout.__init__ = of_patches

EMPTIES = {"reset_prefix_cache", "sleep"}


class HasEngine(Exception):
    """The rollout has made its engine, and needs a real one from here on."""


class Engine:
    """An engine that takes weights and notes what else it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append("wake_up")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        return [name for name, _ in weights]


def caches_prefixes() -> bool:
    """Return what verl asks vLLM's engine for."""
    found: list[bool] = []

    def without_a_device(engine_args: Any, usage_context: Any) -> None:
        found.append(engine_args.enable_prefix_caching)
        raise HasEngine

    LLMEngine.from_engine_args = without_a_device
    given = {
        "prompt_length": 64, "response_length": 64, "max_num_batched_tokens": 256, "max_num_seqs": 1,
        "tensor_model_parallel_size": 1, "dtype": "float32", "free_cache_engine": False, "load_format": "dummy",
    }  # fmt: skip
    try:
        from verl.workers.config import RolloutConfig

        config = RolloutConfig(**given)
    except ImportError:  # verl 0.5.0 and before has no class for it
        usual = {"enforce_eager": True, "gpu_memory_utilization": 0.5, "disable_log_stats": True}
        config = OmegaConf.create(
            given | usual | {"max_model_len": None, "enable_chunked_prefill": True, "engine_kwargs": {}}
        )
    with contextlib.suppress(HasEngine):
        vllm_rollout_spmd.vLLMRollout(
            tempfile.gettempdir(), config, SimpleNamespace(pad_token_id=0),
            SimpleNamespace(max_position_embeddings=8192, rope_scaling=None),
            device_mesh=None, trust_remote_code=False,
        )  # fmt: skip
    return found[0]


def calls_of_two_syncs() -> list[str]:
    """Make the sharding manager by its parts: its constructor asks for groups of devices."""
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
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        cached = caches_prefixes()
        calls = calls_of_two_syncs() if cached else []
        dist.destroy_process_group()
    return {"fault": cached and not EMPTIES.intersection(calls), "prefixes cached": cached, "calls": calls}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
