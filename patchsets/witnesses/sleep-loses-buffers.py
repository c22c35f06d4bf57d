"""Put a RoPE cache to sleep and wake it like verl's rollout and vllm-ascend's worker, and compare its values.

verl 55e3c5b sleeps at level 2, which drops the weights: the actor's come with each weight sync. vllm-ascend's allocator
drops all that was allocated while the model was loaded, the model's buffers too, and no weight sync brings those back
(worker_v1.py:102@v0.9.1rc2; vLLM's own worker for CUDA keeps them, vllm/v1/worker/gpu_worker.py@v0.9.1).

The tree's own: verl's vLLMRollout up to vLLM's engine, NPUWorker.sleep and wake_up, CaMemAllocator, vLLM's rotary
embedding. Not the device's: memory that is released and mapped again is filled with 0xFF here, which in bfloat16 is
NaN; on a device it has what was there last. An engine without sleep mode ends the script: nothing is dropped then.
"""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

from witness_common import an_engine, make_module, make_vllm_rollout, only_rank, show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_PLUGINS": "none", "VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1"}

CONTEXT, HEAD = 64, 8


class NoSleepMode(Exception):
    """The rollout created an engine without sleep mode."""


def stand_in_for_the_device() -> None:
    """Stand-ins for the parts of CANN and vllm-ascend's C extension that CaMemAllocator calls."""
    runtime = make_module(
        "acl.rt", memcpy=lambda to, most, source, size, kind: ctypes.memmove(to, source, size)
    )
    make_module("acl", rt=runtime)
    make_module(
        "vllm_ascend.vllm_ascend_C",
        init_module=None,
        python_create_and_map=lambda device, size, pointer, handle: None,
        python_unmap_and_release=lambda device, size, pointer, handle: (
            ctypes.memset(pointer, 0xFF, size) and None
        ),
    )


def main() -> dict[str, Any]:
    import torch
    import torch_npu

    stand_in_for_the_device()

    torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend/utils.py annotates with, nothing more
    torch.npu.memory = SimpleNamespace(NPUPluggableAllocator=object)  # type: ignore[attr-defined]  # annotates camem.py
    import vllm.platforms  # noqa: F401  (before vllm_ascend)
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
    from vllm_ascend.device_allocator.camem import CaMemAllocator
    from vllm_ascend.platform import NPUPlatform
    from vllm_ascend.worker import worker_v1

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(4, 4))
    model.rope = torch.nn.Module()
    cache = RotaryEmbedding._compute_cos_sin_cache(
        SimpleNamespace(  # type: ignore[arg-type]
            base=10000, rotary_dim=HEAD, max_position_embeddings=CONTEXT,
            _compute_inv_freq=lambda base: 1.0 / base ** (torch.arange(0, HEAD, 2) / HEAD),
        )
    )  # fmt: skip
    model.rope.register_buffer("cos_sin_cache", cache.to(torch.bfloat16), persistent=False)
    allocator = CaMemAllocator.get_instance()
    allocator.current_tag = "weights"  # what NPUWorker.load_model allocates in
    for tensor in (model.weight, model.rope.cos_sin_cache):
        allocator.python_malloc_callback((0, tensor.nbytes, tensor.data_ptr(), 0))
    worker = worker_v1.NPUWorker.__new__(worker_v1.NPUWorker)
    worker.device, worker.model_runner, worker._sleep_saved_buffers = None, SimpleNamespace(model=model), {}
    NPUPlatform.mem_get_info = classmethod(lambda cls: (0, 0))
    NPUPlatform.set_device = classmethod(lambda cls, device: None)
    if hasattr(worker_v1, "sleep_mode_enabled"):
        worker_v1.sleep_mode_enabled = lambda: True

    before, levels = model.rope.cos_sin_cache.clone(), list[int]()

    def sleep(level: int = 1) -> None:
        levels.append(level)
        worker.sleep(level)

    try:
        make_rollout(sleep)
    except NoSleepMode:
        return {"fault": False, "sleep mode": False}
    worker.wake_up(tags=["weights"])
    same = torch.equal(model.rope.cos_sin_cache, before)
    return {"fault": not same, "sleep mode": True, "levels": levels, "values kept": same}


def make_rollout(sleep: object) -> None:
    """Create verl's rollout up to its first sleep, with an engine that can only sleep."""

    def without_a_device(engine_args: Any) -> SimpleNamespace:
        if not engine_args.enable_sleep_mode:
            raise NoSleepMode
        engine = an_engine(engine_args)
        vars(engine).update(sleep=sleep, reset_prefix_cache=lambda device=None: None)
        return engine

    make_vllm_rollout(without_a_device, free_cache_engine=True, max_model_len=128, max_num_seqs=1)


if __name__ == "__main__":
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with only_rank():
        show(main)
