"""Adaptation noise-for-each-step: each generation of each rollout replica draws its own random numbers.

verl_patches of cann-recipes-train bcd3be7 allocate the KV cache again for each generation
(verl_patches/workers/vllm_rollout/vllm_rollout_spmd.py:171), with vLLM's `Executor.initialize_from_config`. That also
warms the worker up (vllm/v1/executor/abstract.py:66@v0.9.1), and ends with `set_random_seed(model_config.seed)`
(vllm_ascend/worker/worker_v1.py:211@f20869ef): 0 on every rank. These requests have no seed, so the sampler draws from
the device's generator (vllm/v1/sample/ops/topk_topp_sampler.py:248@v0.9.1).

verl's own sharding managers seed once per replica, keep the generator's state from one generation to the next, and
restore training's state (verl/workers/sharding_manager/fsdp_vllm.py:92@54c9b73; for Megatron since fc6ebc9eb). Here the
seed of each generation is computed from its step, so that a resumed run draws the numbers of an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .switches import enabled
from .used import count

SLUG = "noise-for-each-step"
STEP = "global_steps"


def carry(batch: Any, step: int) -> None:
    """Add the trainer's step to the batch to generate, as verl's trainer does since ec4433cd5 (#2345)."""
    if enabled(SLUG):
        batch.meta_info[STEP] = step


@contextlib.contextmanager
def apart(rollout: Any, meta_info: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
    """Give a generation its own state of the device's generator, and restore training's state when it ends.

    The host's generators stay as upstream leaves them: equal on all ranks. The ranks of one training group belong to
    several replicas, and must shuffle in the same order.

    Args:
        rollout: verl's vLLMRollout.
        meta_info: The batch's meta_info, with `global_steps` if the trainer passes the step.

    Yields:
        A function that sets the seed, to be called after the KV cache was allocated.
    """
    if not enabled(SLUG):
        yield lambda: None
        return
    from verl.utils.device import get_torch_device

    device = get_torch_device()
    training = device.get_rng_state()
    try:
        yield lambda: device.manual_seed(_seed(rollout, meta_info))
    finally:
        device.set_rng_state(training)


def _seed(rollout: Any, meta_info: Mapping[str, Any]) -> int:
    """Return a seed shared by the tensor-parallel ranks of a replica and used by no other generation of the run.

    It depends on the engine's seed, the replica, the step, whether this is a validation, and the number of earlier
    generations of that kind in the step. Without a step in `meta_info`, as in verl's `_validate`, the step is the
    previous generation's, 0 at first.
    """
    from vllm.distributed.parallel_state import get_tp_group

    count(SLUG)
    validation = bool(meta_info.get("validate", False))
    step_before, done = getattr(rollout, "npu_rl_generations", (0, Counter[bool]()))
    step = meta_info.get(STEP, step_before)
    if step != step_before:
        done = Counter[bool]()
    number = done[validation]
    done[validation] += 1
    rollout.npu_rl_generations = (step, done)
    engine = rollout.inference_engine.llm_engine.model_executor.driver_worker.worker
    parts = (engine.model_config.seed, get_tp_group().ranks[0], step, validation, number)
    # A digest, since sums of seed, replica and step would meet. 63 bits: seeds of NPU kernels are signed.
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
