"""With VLLM_DP_SIZE set, every vLLM engine of verl takes itself for the first replica, at port 0.

Two gloo ranks, which this script starts itself, make verl's vLLMRollout
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b), or verl_patches' in its place, up to vLLM's engine;
then ParallelConfig reads rank and port as the engine does (vllm/config.py@v0.9.1). Replicas that have one rank and
port 0 wait for each other until torch's timeout.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

WORLD = 2


def main() -> dict[str, object]:
    given = os.environ | {
        "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "LOCAL_RANK": "0",
        "VLLM_USE_V1": "1", "VLLM_DP_SIZE": str(WORLD), "VLLM_PLUGINS": "",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, f"{folder}/store"],
                env=given | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(WORLD)
        ]  # fmt: skip
        try:
            output = [rank.communicate(timeout=500)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    replicas = [json.loads(text.strip().splitlines()[-1]) for text in output]
    meet = [one["rank"] for one in replicas] == [0, 1] and len({one["port"] for one in replicas} - {0}) == 1
    return {"fault": not meet, "replicas": replicas}


def be_a_rank(store: str) -> dict[str, int]:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    from omegaconf import OmegaConf
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
    from vllm.config import ParallelConfig
    from vllm.entrypoints.llm import LLMEngine

    class HasEngineError(Exception):
        """The rollout has made its engine, and needs a real one from here on."""

    patched = importlib.util.find_spec("verl_patches") is not None  # puts its own function in place of verl's
    if patched:
        import torch_npu
        from vllm.platforms import current_platform

        torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend names; the stand-in has no graphs
        current_platform.device_type = (
            "cpu"  # the default configuration, with which it forms groups, has a device
        )
        from verl_patches.workers.vllm_rollout.vllm_rollout_spmd import __init__ as of_patches

        vllm_rollout_spmd.vLLMRollout.__init__ = of_patches
    found: dict[str, int] = {}

    def without_a_device(engine_args: object, usage_context: object) -> SimpleNamespace:
        config = ParallelConfig(distributed_executor_backend="external_launcher")
        found.update(rank=config.data_parallel_rank, port=config.data_parallel_master_port)
        if patched:
            raise HasEngineError
        scheduler = SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=256, max_num_seqs=1)
        sizes = SimpleNamespace(
            scheduler_config=scheduler,
            cache_config=SimpleNamespace(num_gpu_blocks=None, block_size=128),
            model_config=SimpleNamespace(max_model_len=128),
        )
        core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=SimpleNamespace(keeps_room=True)))
        return SimpleNamespace(vllm_config=sizes, engine_core=core, get_supported_tasks=lambda: ("generate",))

    LLMEngine.from_engine_args = without_a_device
    given = {
        "prompt_length": 64, "response_length": 64, "tensor_model_parallel_size": 1, "dtype": "float32",
        "free_cache_engine": False, "load_format": "dummy", "max_num_batched_tokens": 256,
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
        config = OmegaConf.create(given | more | {"enable_chunked_prefill": True})
    with contextlib.suppress(HasEngineError):
        vllm_rollout_spmd.vLLMRollout(
            tempfile.gettempdir(), config, SimpleNamespace(pad_token_id=0),
            SimpleNamespace(max_position_embeddings=8192, rope_scaling=None),
            device_mesh=None, trust_remote_code=False,
        )  # fmt: skip
    dist.all_reduce(torch.zeros(1))  # the store of a group lives in its first rank
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(be_a_rank(sys.argv[1]) if len(sys.argv) > 1 else main()))
