"""Make verl_patches' vLLM rollout up to its engine, whose KV cache has `blocks` blocks: `run_cann_rollout.py JOB`.

The rollout's __init__ is the tree's, as are the scheduler and its configuration. vLLM's LLM is not made: what stands
for it has both, and ends the rollout where it asks for the model. JOB is a JSON list of objects with "blocks", and
where they differ "prompt", "step" and "keeps room" (whether the scheduler has the patch kv-cache-room). Prints JSON:
what the engine was given each time, the error before or after it, and the warnings.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

RESPONSE, SEQUENCES, BLOCK = 3072, 64, 128


class Reached(Exception):
    """The rollout has gone past its engine."""


class Engine:
    """vLLM's LLM as far as the rollout comes here."""

    def __init__(self, vllm_config: Any, scheduler: Any) -> None:
        self.vllm_config = vllm_config
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))

    @property
    def model_executor(self) -> Any:
        raise Reached


def attempt(job: dict[str, Any], module: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from vllm.config import CacheConfig, SchedulerConfig
    from vllm_ascend.core.schedule_config import AscendSchedulerConfig

    given: dict[str, Any] = {}

    def without_a_device(**arguments: Any) -> SimpleNamespace:
        section = arguments["additional_config"]["ascend_scheduler_config"]
        given["scheduler"] = section
        sizes = {
            name: arguments[name] for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
        }
        scheduler = AscendSchedulerConfig.initialize_from_config(
            SchedulerConfig(enable_chunked_prefill=arguments["enable_chunked_prefill"], **sizes),
            SimpleNamespace(**section),
        )
        cache = CacheConfig(block_size=BLOCK, swap_space=0)
        cache.num_gpu_blocks = job["blocks"]
        model = SimpleNamespace(max_model_len=arguments["max_model_len"])
        made = SimpleNamespace(scheduler_config=scheduler, cache_config=cache, model_config=model)
        keeps = SimpleNamespace(keeps_room=True) if job.get("keeps room", True) else SimpleNamespace()
        return SimpleNamespace(llm_engine=Engine(made, keeps))

    module.LLM = without_a_device
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("npu_rl_runtime").addHandler(handler)
    config = OmegaConf.create(
        {
            "prompt_length": job.get("prompt", 1024), "response_length": RESPONSE, "max_model_len": None,
            "max_num_batched_tokens": job.get("step", 1024), "load_format": "dummy_megatron", "dtype": "bfloat16",
            "enforce_eager": False, "gpu_memory_utilization": 0.8, "disable_log_stats": True,
            "enable_chunked_prefill": True, "tensor_model_parallel_size": 1,
        }
    )  # fmt: skip
    error = ""
    try:
        module.vLLMRollout(
            "a-model", config, SimpleNamespace(pad_token_id=0), SimpleNamespace(max_position_embeddings=8192),
            max_num_seqs=SEQUENCES,
        )  # fmt: skip
    except Reached:
        pass
    except ValueError as refused:
        error = str(refused)
    finally:
        logging.getLogger("npu_rl_runtime").removeHandler(handler)
    return {**given, "error": error, "warned": warned}


def main(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    import torch.distributed as dist
    import torch_npu

    torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend/utils.py annotates with, nothing more
    import vllm  # noqa: F401  (before vllm_ascend)

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
        from verl_patches.workers.vllm_rollout import vllm_rollout_spmd

        try:
            return [attempt(job, vllm_rollout_spmd) for job in jobs]
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(sys.argv[1]))))
