"""Roll out for some steps by verl's own classes, on an engine made here, and print what the memory and answers were.

    python run_offload.py

On PYTHONPATH: the stand-ins for a CPU, and a tree with verl, vLLM and Megatron. What is called are vLLMRollout.__init__
and MegatronVLLMShardingManager.__enter__ and .__exit__, with verl's order of waking, loading and sleeping in them. The
engine is tests/runtime/tiny_engine.py; its own sleep does nothing, as vLLM's on a CPU. The output is one line of JSON:
what the engine was made with; the bytes of its weights and KV cache after __init__, in each rollout and after it; and
the answers of each; and what comes out of a rollout that fails, with the bytes after it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2]))

import verl.utils.vllm.patch as loaders
import verl.workers.rollout.vllm_rollout.vllm_rollout_spmd as rollouts
import verl.workers.sharding_manager.megatron_vllm as managers

from tests.runtime import tiny_engine

SENT = [1, 2, 1]
made: list[tiny_engine.TinyLLM] = []
asked: list[bool] = []


class Config(dict[str, Any]):
    """verl's RolloutConfig: attributes, `get` and keys."""

    __getattr__ = dict.__getitem__


def make(*, enable_sleep_mode: bool, **_: Any) -> tiny_engine.TinyLLM:
    asked.append(enable_sleep_mode)
    made.append(tiny_engine.TinyLLM(wide=64, enable_sleep_mode=enable_sleep_mode))
    return made[-1]


def config() -> Config:
    return Config(
        tensor_model_parallel_size=1, prompt_length=4, response_length=4, max_model_len=None, max_num_seqs=4,
        enable_chunked_prefill=False, max_num_batched_tokens=64, load_format="dummy", cudagraph_capture_sizes=None,
        enforce_eager=True, dtype="bfloat16", free_cache_engine=True, gpu_memory_utilization=0.5,
        disable_log_stats=True,
    )  # fmt: skip


def manager(llm: tiny_engine.TinyLLM) -> Any:
    """verl's sharding manager, without the actor's model: what it sends is given by `bridge`."""
    one = managers.MegatronVLLMShardingManager.__new__(managers.MegatronVLLMShardingManager)
    one.inference_engine, one.model_runner, one.rollout_config = llm, llm.runner, config()
    one.actor_module, one.offload_param, one.device_mesh = [torch.nn.Identity()], False, None
    steps = iter(SENT)
    one.bridge = SimpleNamespace(
        export_weights=lambda _: iter(tiny_engine.weights(llm.model, next(steps)).items())
    )
    return one


def held(llm: tiny_engine.TinyLLM) -> int:
    """Bytes of the matrices and the KV cache."""
    tensors = [one for one in llm.model.parameters() if one.dim() > 1]
    tensors += [part for cache in llm.runner.kv_caches for part in cache]
    tensors += [
        part for part in (llm.model.attention.impl.W_UV, llm.model.attention.impl.W_UK_T) if part is not None
    ]
    return sum(one.nbytes for one in tensors)


def fail() -> Any:
    """In the place of the engine's step."""
    raise ArithmeticError("a kernel has failed")


def main() -> Any:
    rollouts.LLM = make
    managers.aggressive_empty_cache = lambda **_: None
    loaders.patch_vllm_moe_model_weight_loader = lambda model: tiny_engine.load(model, {})
    rollouts.vLLMRollout(
        "model", config(), SimpleNamespace(pad_token_id=0), SimpleNamespace(max_position_embeddings=64)
    )
    (llm,) = made
    found: dict[str, Any] = {"sleep mode": asked[0], "bytes": [held(llm)], "answers": []}
    step = manager(llm)
    for _ in SENT:
        with contextlib.ExitStack() as rollout:
            rollout.enter_context(step)
            found["answers"].append(llm.generate([1, 2, 3]))
            found["bytes"].append(held(llm))
            llm.core.scheduler.reset_prefix_cache()
        found["bytes"].append(held(llm))
    llm.llm_engine.step = fail
    steps = manager(llm)
    try:
        with steps:
            llm.generate([1, 2, 3])
    except (ArithmeticError, RuntimeError) as error:
        found["failure"], found["after failure"] = f"{type(error).__name__}: {error}", held(llm)
    return found


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    print(json.dumps(main()))
    torch.distributed.destroy_process_group()
