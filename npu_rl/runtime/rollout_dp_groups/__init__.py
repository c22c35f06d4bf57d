"""Adaptation rollout-dp-groups: the rollout engines of all devices form one expert-parallel group.

With VLLM_DP_SIZE, vLLM's data-parallel replicas step together and share their experts. Each engine needs its rank
among them and the address of the first one; vLLM reads both from its process's environment
(`ParallelConfig.__post_init__`, vllm/config.py:1876@v0.9.1), and verl 55e3c5b sets neither: every engine takes
itself for the first, at port 0. verl's own line that forms vLLM's groups is never reached: it depends on an argument
`train_tp` that no worker passes (verl/workers/megatron_workers.py:402@55e3c5b).
"""

from __future__ import annotations

import os

from ..switches import enabled
from ..used import count

SLUG = "rollout-dp-groups"
SIZE = "VLLM_DP_SIZE"


def form(tensor_parallel_size: int) -> bool:
    """Form vLLM's groups over the training world and set this process's rank in them; a collective call of all ranks.

    Does nothing and returns False, so that upstream's code runs, if the adaptation is off or VLLM_DP_SIZE is 1 or not
    set. Rank r is tensor rank r % tensor_parallel_size of replica r // tensor_parallel_size; all ranks are one
    expert-parallel group. Afterwards VLLM_DP_RANK, VLLM_DP_RANK_LOCAL, VLLM_DP_MASTER_IP and VLLM_DP_MASTER_PORT are
    set, as vLLM's engine requires.

    Raises ValueError if VLLM_DP_SIZE is not a size or doesn't match the world, and RuntimeError if there is no world
    yet, or no address or port for a group.
    """
    if not enabled(SLUG):
        return False
    size = data_parallel_size()
    if size == 1:
        return False
    from .groups import form_groups
    from .meeting_point import agree

    check_size(size, tensor_parallel_size)
    form_groups(tensor_parallel_size)
    agree()
    count(SLUG)
    return True


def data_parallel_size() -> int:
    """Return VLLM_DP_SIZE, the number of data-parallel replicas; 1 if it is not set."""
    text = os.environ.get(SIZE, "1")
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(
            f"{SIZE}={text!r} is not a number of data-parallel replicas: set it to "
            "dies / rollout tensor parallel, or unset it"
        )
    return int(text)


def check_size(data_parallel: int, tensor_parallel: int) -> None:
    """Raise an error unless the data-parallel replicas cover the training world exactly."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError(
            f"{SIZE}={data_parallel}, but the training processes have formed no world yet: vLLM's groups are made "
            "of its ranks. Initialise torch.distributed before the rollout is built."
        )
    world = dist.get_world_size()
    if data_parallel * tensor_parallel != world:
        fits = (
            f"Set {SIZE}={world // tensor_parallel}, or unset it for replicas that are independent of each other."
            if world % tensor_parallel == 0
            else "The tensor parallel size of the rollout has to divide the world."
        )
        raise ValueError(
            f"{SIZE}={data_parallel} replicas x tensor parallel {tensor_parallel} are "
            f"{data_parallel * tensor_parallel} dies, but the training world has {world}: vLLM's replicas share their "
            f"experts over all of it. {fits}"
        )
