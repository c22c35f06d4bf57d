"""verl accepts prompts that vllm-ascend's scheduler drops, longer than a step; the rollout waits forever.

Made is verl's vLLMRollout (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b), or verl_patches' in its
place, up to vLLM's engine, with the Ascend scheduler on, prompts of 1025 tokens and steps of 1024; verl's own check
only refuses the reverse, steps that are shorter than a sequence where chunked prefill makes them legal. "accepts" is
whether each of the two is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

os.environ |= {
    "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29556",
    "VLLM_USE_V1": "1", "VLLM_PLUGINS": "",
}  # fmt: skip


import torch.distributed as dist
import torch_npu
from omegaconf import OmegaConf
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
from vllm.entrypoints.llm import LLMEngine

torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend names; the stand-in has no graphs
PATCHED = importlib.util.find_spec("verl_patches") is not None  # puts its own function in place of verl's
if PATCHED:
    from verl_patches.workers.vllm_rollout.vllm_rollout_spmd import __init__ as of_patches

    vllm_rollout_spmd.vLLMRollout.__init__ = of_patches


class HasEngine(Exception):
    """The rollout has made its engine, and needs a real one from here on."""


def without_a_device(engine_args: Any, usage_context: Any) -> Any:
    demand_of_ascend(engine_args)
    scheduler = SimpleNamespace(
        enable_chunked_prefill=True,
        max_num_batched_tokens=engine_args.max_num_batched_tokens,
        max_num_seqs=engine_args.max_num_seqs,
    )
    sizes = SimpleNamespace(
        scheduler_config=scheduler,
        cache_config=SimpleNamespace(num_gpu_blocks=None, block_size=128),
        model_config=SimpleNamespace(max_model_len=engine_args.max_model_len),
    )
    if PATCHED:
        raise HasEngine
    core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=SimpleNamespace(keeps_room=True)))
    return SimpleNamespace(vllm_config=sizes, engine_core=core, get_supported_tasks=lambda: ("generate",))


def demand_of_ascend(engine_args: Any) -> None:
    """Let vllm-ascend's own configuration judge the sizes, as its platform does when it makes the engine's."""
    from vllm.config import SchedulerConfig
    from vllm_ascend.core.schedule_config import AscendSchedulerConfig

    given = (engine_args.additional_config or {}).get("ascend_scheduler_config", {})
    if given.get("enabled"):
        sizes = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
        usual = SchedulerConfig(
            enable_chunked_prefill=True, **{name: getattr(engine_args, name) for name in sizes}
        )
        AscendSchedulerConfig.initialize_from_config(usual, SimpleNamespace(**given))


def accepts(prompt: int, ascend: bool, chunked: bool) -> bool:
    scheduler = {"vllm": {"additional_config": {"ascend_scheduler_config": {"enabled": ascend}}}}
    given = {
        "prompt_length": prompt, "response_length": 3072, "max_num_batched_tokens": 1024, "max_num_seqs": 64,
        "tensor_model_parallel_size": 1, "dtype": "float32", "free_cache_engine": False, "load_format": "dummy",
        "enable_chunked_prefill": chunked,
        "engine_kwargs": {} if PATCHED else scheduler,  # verl_patches always switch it on
    }  # fmt: skip
    try:
        from verl.workers.config import RolloutConfig

        config = RolloutConfig(**given)
    except ImportError:  # verl 0.5.0 and before has no class for it
        more = {
            "enforce_eager": True,
            "gpu_memory_utilization": 0.5,
            "disable_log_stats": True,
            "max_model_len": None,
        }
        config = OmegaConf.create(given | more)
    try:
        vllm_rollout_spmd.vLLMRollout(
            tempfile.gettempdir(), config, SimpleNamespace(pad_token_id=0),
            SimpleNamespace(max_position_embeddings=8192, rope_scaling=None),
            device_mesh=None, trust_remote_code=False,
        )  # fmt: skip
    except ValueError as error:
        if "chunked prefill" not in str(error).lower() and "Ascend scheduler" not in str(error):
            raise  # not of the sizes
        return False
    except HasEngine:
        pass
    return True


def main() -> dict[str, Any]:
    LLMEngine.from_engine_args = without_a_device
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        dropped, legal = accepts(1025, True, False), accepts(1024, False, True)
        dist.destroy_process_group()
    return {"fault": dropped, "accepts": {"a dropped prompt": dropped, "chunked prefill": legal}}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
