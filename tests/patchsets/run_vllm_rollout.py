"""Make verl's `vLLMRollout` out of its own file, on every rank of a real gloo world, and print what came of it.

    python run_vllm_rollout.py JOB

JOB and the output are JSON: {jobs: a list of keys of RolloutConfig, world: ranks, meet: whether the engines shall find
each other, ascend: on vllm-ascend's platform, blocks: see `sizes`, keeps room: whether the engine's scheduler says so};
{ranks: for each a list of {step: the tokens of a step that vLLM's own `LLM` made of upstream's call, met: see `meet`}
or {error: type and text}, occupied: ports at which somebody listens already}.

Everything up to the engine is real. The engine itself needs a device; in its place are the lines of vLLM by which it
and its worker find the other copies of the model (vllm/v1/engine/llm_engine.py:77, vllm/worker/worker.py@v0.9.1).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Be the parent of all ranks."""
    world = job.get("world", 1)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        occupied = obvious_ports(held)
        given = os.environ | {
            "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(occupied[0]), "LOCAL_RANK": "0",
            "VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1",
        }  # fmt: skip
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, json.dumps(job), f"{folder}/store"],
                env=given | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            said = [rank.communicate(timeout=240)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()  # those that wait for one that failed
    return {"ranks": [json.loads(text.strip().splitlines()[-1]) for text in said], "occupied": occupied}


def obvious_ports(held: contextlib.ExitStack) -> list[int]:
    """Listen at a free port, as the trainer does at MASTER_PORT, and at those of the next eight that are free."""
    ports: list[int] = []
    for place in range(9):
        listener = held.enter_context(socket.socket())
        try:
            listener.bind(("", ports[0] + place if ports else 0))
        except OSError:
            continue  # somebody else's, occupied as well
        listener.listen()
        ports.append(listener.getsockname()[1])
    return ports


def be_a_rank(job: dict[str, Any], store: str) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    if job.get("ascend"):
        import torch_npu

        torch_npu._C._NPUTaskGroupHandle = (
            object  # a type that vllm_ascend/utils.py annotates with, nothing more
        )
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        return [attempt(config, job) for config in job["jobs"]]
    finally:
        dist.all_reduce(torch.zeros(1))  # until all are done: the store of a group lives in its first rank
        dist.destroy_process_group()


def attempt(config: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    from verl.workers.config import RolloutConfig
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
    from vllm.entrypoints.llm import LLMEngine

    seen: dict[str, Any] = {}

    def without_a_device(engine_args: Any, usage_context: Any) -> Any:
        seen["step"] = engine_args.max_num_batched_tokens
        if job.get("meet"):
            seen["met"] = meet(engine_args)
        scheduler = SimpleNamespace(keeps_room=job.get("keeps room", False))
        core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        return SimpleNamespace(vllm_config=sizes(engine_args, job.get("blocks")), engine_core=core)

    LLMEngine.from_engine_args = without_a_device
    told = {"prompt_length": 64, "response_length": 64, "tensor_model_parallel_size": 1, "dtype": "float32"}
    told |= {"free_cache_engine": False, "load_format": "dummy", "max_num_batched_tokens": 256, **config}
    try:
        vllm_rollout_spmd.vLLMRollout(
            "a-model",
            RolloutConfig(**told),
            SimpleNamespace(pad_token_id=0),
            SimpleNamespace(max_position_embeddings=8192),
            device_mesh=None,  # as verl/workers/megatron_workers.py:407@55e3c5b: no train_tp
            trust_remote_code=False,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    return seen


def sizes(engine_args: Any, blocks: int | None) -> Any:
    """What a made engine says of itself. blocks: of 128 tokens, in the cache of a scheduler that takes whole prompts;
    None is one that takes them in pieces."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            enable_chunked_prefill=blocks is None,
            max_num_batched_tokens=engine_args.max_num_batched_tokens,
            max_num_seqs=engine_args.max_num_seqs,
        ),
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=128),
        model_config=SimpleNamespace(max_model_len=engine_args.max_model_len),
    )


def meet(engine_args: Any) -> dict[str, Any]:
    """The engine's group of copies, then the worker's groups, in that order and by vLLM's own code."""
    from vllm import envs
    from vllm.config import CompilationConfig, ParallelConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    config = ParallelConfig(
        tensor_parallel_size=engine_args.tensor_parallel_size,
        enable_expert_parallel=engine_args.enable_expert_parallel,
        distributed_executor_backend=engine_args.distributed_executor_backend,
    )
    found: dict[str, Any] = {
        "size": config.data_parallel_size,
        "rank": config.data_parallel_rank,
        "local": config.data_parallel_rank_local,
        "host": config.data_parallel_master_ip,
        "port": config.data_parallel_master_port,
        "agree": config.data_parallel_master_port == envs.VLLM_DP_MASTER_PORT,
    }
    if config.data_parallel_size > 1:
        copies = config.stateless_init_dp_group()
        # `LLMEngine.has_unfinished_requests`: the last copy still has answers to write, so all go on.
        last = config.data_parallel_rank == config.data_parallel_size - 1
        found["unfinished"] = [config.has_unfinished_dp(copies, mine) for mine in (False, last)]
    whole: Any = SimpleNamespace(parallel_config=config, compilation_config=CompilationConfig())
    with set_current_vllm_config(whole):
        backend = parallel_state.torch.distributed.get_backend()
        parallel_state.init_distributed_environment(
            config.world_size, config.data_parallel_rank, "env://", 0, backend
        )
        parallel_state.ensure_model_parallel_initialized(config.tensor_parallel_size, 1)
    groups = {"tensor": "_TP", "data": "_DP", "expert": "_EP"}
    for kind, name in groups.items():
        found[kind] = list(getattr(parallel_state, name).ranks)
    found["class"] = type(parallel_state.get_tp_group()).__name__
    return found


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    # vLLM and verl write to standard output, too: the result is the last line.
    print("\n" + json.dumps(be_a_rank(given, sys.argv[2]) if len(sys.argv) > 2 else main(given)))
