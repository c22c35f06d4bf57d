"""Draw samples in three steps and two validations, on two replicas, and count how many of the ten differ.

verl_patches make the KV cache again for each generation (verl_patches/workers/vllm_rollout/vllm_rollout_spmd.py:171 of
cann-recipes-train bcd3be7) by vLLM's Executor.initialize_from_config, which warms the worker up; that ends with
`set_random_seed(model_config.seed)` (vllm_ascend/worker/worker_v1.py:211@f20869ef), 0 on every rank.

Four gloo ranks, two for each replica, run the tree's own trainer up to its generation, the worker's
generate_sequences, init_cache_engine, vLLM's executor, vllm-ascend's warm-up, the groups of init_parallel_state, and
vLLM's sampler. Model, graphs, KV cache and weights are left out: the sampler gets the same logits for every token, so
that samples differ by the random numbers alone. A CPU has one generator for the device and the host.
"""

from __future__ import annotations

import contextlib
import gc
import os
from types import SimpleNamespace
from typing import Any

from witness_common import fork_ranks, make_apex, make_module, show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

RANKS, TENSOR_PARALLEL, STEPS = 4, 2, 3
REQUESTS, TOKENS, VOCABULARY = 8, 4, 1000


class Generated(Exception):
    """The trainer's step has finished generation."""


def rollout(seed: int) -> Any:
    """Return verl's rollout in its state after __init__: with an engine, but no KV cache."""
    import torch
    from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout
    from vllm.config import VllmConfig
    from vllm.v1.executor.abstract import ExecutorWithExternalLauncher
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.worker.worker_base import WorkerWrapperBase
    from vllm_ascend.worker.worker_v1 import NPUWorker

    model = SimpleNamespace(seed=seed, enforce_eager=True, enable_sleep_mode=False)
    npu_worker: Any = object.__new__(NPUWorker)
    npu_worker.model_config = model
    npu_worker.vllm_config = SimpleNamespace(
        model_config=model, compilation_config=SimpleNamespace(compile_sizes=[])
    )
    npu_worker.model_runner = SimpleNamespace(kv_caches=[], initialize_kv_cache=lambda config: None)
    driver: Any = object.__new__(WorkerWrapperBase)
    driver.__dict__.update(worker=npu_worker, rpc_rank=0, vllm_config=VllmConfig())
    executor: Any = object.__new__(ExecutorWithExternalLauncher)
    executor.driver_worker = driver
    core = SimpleNamespace(model_executor=executor, kv_cache_configs=[None])
    engine = SimpleNamespace(model_executor=executor, engine_core=SimpleNamespace(engine_core=core))

    def generate(prompts: Any) -> Any:
        logits = -torch.arange(VOCABULARY).repeat(REQUESTS, 1) / 20
        k, p = torch.full((REQUESTS,), 50), torch.full((REQUESTS,), 0.9)
        tokens = [TopKTopPSampler()(logits.clone(), {}, k, p) for _ in range(TOKENS)]
        prompts.batch["responses"] = torch.stack(tokens, 1)
        return prompts

    one: Any = object.__new__(vLLMRollout)
    one.inference_engine = SimpleNamespace(llm_engine=engine)
    one.generate_sequences = generate
    return one


class Sharding(contextlib.nullcontext):  # type: ignore[type-arg]
    """A sharding manager without weights to move."""

    preprocess_data = postprocess_data = staticmethod(lambda data: data)


def worker() -> Any:
    """Return the actor and rollout worker of a run that has just started."""
    from verl.workers import megatron_workers

    one: Any = object.__new__(megatron_workers.ActorRolloutRefWorker)
    one.__dict__.update(
        _is_rollout=True, _is_offload_param=False, _is_offload_optimizer=False, generation_config=None,
        tokenizer=SimpleNamespace(eos_token_id=0, pad_token_id=0), _world_size=RANKS, rollout=rollout(seed=0),
        sharding_manager=Sharding(),
    )  # fmt: skip
    return one


def trainer(worker: Any, step: int, found: dict[str, Any]) -> Any:
    """Return the state that the trainer's loop needs for generation in `step`, as after a resume at the step before."""
    import numpy as np
    import torch
    from omegaconf import OmegaConf

    def generate(batch: Any) -> None:
        found["responses"] = worker.generate_sequences(batch).batch["responses"].tolist()
        raise Generated

    rows = torch.zeros(1, 2, dtype=torch.long).repeat(REQUESTS, 1)
    batch = dict.fromkeys(("input_ids", "attention_mask", "position_ids"), rows)
    options = {"project_name": "", "experiment_name": "", "logger": [], "total_epochs": 1}
    one = SimpleNamespace(
        config=OmegaConf.create({"trainer": options}), val_reward_fn=None, total_training_steps=STEPS,
        async_rollout_mode=False, actor_rollout_wg=SimpleNamespace(generate_sequences=generate),
        train_dataloader=[batch | {"raw_prompt_ids": np.array([[1]] * REQUESTS, dtype=object)}],
    )  # fmt: skip
    one._load_checkpoint = lambda: setattr(one, "global_steps", step - 1)
    return one


def validation(worker: Any) -> Any:
    """Return the samples of one validation batch as verl's trainer generates them: without the step."""
    import torch
    from verl import DataProto

    rows = torch.zeros(REQUESTS, 2, dtype=torch.long)
    prompts = DataProto.from_dict(tensors={"input_ids": rows}, meta_info={"validate": True})
    return worker.generate_sequences(prompts).batch["responses"].tolist()


def one_rank(rank: int, folder: str) -> tuple[Any, ...]:
    """Return a rank's samples, whether a resumed step draws the same, and whether training's state is kept."""
    import torch
    from verl_patches.trainer.ppo.ray_trainer import fit
    from verl_patches.workers.vllm_rollout.vllm_parallel_state import init_parallel_state

    init_parallel_state(TENSOR_PARALLEL)
    torch.manual_seed(1 + rank)  # training's, which a generation has no part in
    training = torch.get_rng_state()

    def step(one: Any, number: int) -> Any:
        found: dict[str, Any] = {}
        with contextlib.suppress(Generated):
            fit(trainer(one, number, found))
        return found["responses"]

    run, resumed = worker(), worker()
    drawn = [step(run, number) for number in range(1, STEPS + 1)] + [validation(run) for _ in range(2)]
    again = step(resumed, STEPS) == drawn[STEPS - 1]
    kept = torch.equal(training, torch.get_rng_state())
    return drawn, again, kept


def main() -> dict[str, Any]:
    """Return the number of different generations, and further properties that must hold."""
    from torch_npu.contrib import transfer_to_npu  # noqa: F401  Megatron's modules ask for a CUDA device

    make_apex()  # the prelude puts MindSpeed's AdamW into it
    # Of sleep mode, which the recipe leaves off.
    make_module("vllm_ascend.device_allocator.camem", CaMemAllocator=None)
    os.environ |= {
        "VLLM_USE_V1": "1", "VLLM_DP_SIZE": str(RANKS // TENSOR_PARALLEL), "D2D_DATA_TRANSFER": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555",
    }  # fmt: skip
    # Before the fork: importing takes 10 s.
    import verl_patches.trainer.ppo.ray_trainer
    import verl_patches.workers.megatron_workers
    import verl_patches.workers.vllm_rollout.vllm_rollout_spmd  # noqa: F401
    import vllm_ascend.worker.worker_v1  # noqa: F401

    gc.freeze()
    drawn, again, kept = zip(*fork_ranks(RANKS, one_rank, seconds=200), strict=True)
    replicas = drawn[::TENSOR_PARALLEL]
    samples = [str(responses) for replica in replicas for responses in replica]
    return {
        "fault": len(set(samples)) < len(samples), "generations": len(samples), "different": len(set(samples)),
        "tensor-parallel ranks agree": list(drawn) == [replicas[rank // TENSOR_PARALLEL] for rank in range(RANKS)],
        "a resumed step draws the same": all(again), "training's state is kept": all(kept),
    }  # fmt: skip


if __name__ == "__main__":
    show(main)
