"""The process groups that follow from a layout: their sizes and their ranks."""

from __future__ import annotations

import math

from npu_rl.recipes.sizing.parallelism import Parallelism, RolloutSizes

Ranks = tuple[int, ...]


def train_groups(layout: Parallelism) -> dict[str, int]:
    """Return ranks per group of each kind that the training backend forms, for a valid layout."""
    train, world = layout.train, layout.world
    if not layout.megatron:
        sharded = 0 < train.shard < world
        sizes = {"ddp": world // train.shard, "fsdp": train.shard} if sharded else {"fsdp": world}
        if train.sequence > 1:
            sizes |= {"data": world // train.sequence, "sequence": train.sequence}
        if layout.rollout is not None:
            sizes["rollout_tensor"] = layout.rollout.tensor
        return sizes
    data = world // (train.tensor * train.pipeline * train.context)
    return {
        "tensor": train.tensor,
        "pipeline": train.pipeline,
        "context": train.context,
        "data": data,
        "data_context": data * train.context,
        "model": train.tensor * train.pipeline,
        "expert": train.expert,
        "expert_tensor": layout.expert_tensor,
        "expert_data": world // (layout.expert_tensor * train.expert * train.pipeline),
    }


def rollout_groups(rollout: RolloutSizes) -> dict[str, int]:
    """Return ranks per group of each kind that vLLM forms."""
    return {
        "rollout_tensor": rollout.tensor,
        "rollout_data": rollout.data,
        "rollout_expert": rollout.tensor * rollout.data,
    }


def train_members(layout: Parallelism) -> dict[str, list[Ranks]]:
    """Return the ranks of every Megatron group, for a valid layout.

    Ranks are in the order tp-cp-ep-dp-pp, the default of initialize_model_parallel
    (megatron/core/parallel_state.py@core_v0.12.1): tensor, then context, data and pipeline grow with the rank.
    """
    sizes = train_groups(layout)
    dense = {name: sizes[name] for name in ("tensor", "context", "data", "pipeline")}
    expert = {name: sizes[name] for name in ("expert_tensor", "expert", "expert_data", "pipeline")}
    return _orthogonal(dense) | _orthogonal(expert)


def rollout_members(rollout: RolloutSizes, world: int) -> dict[str, list[Ranks]]:
    """Return the ranks of every vLLM group: tensor ranks are adjacent, then data ranks.

    Source: initialize_model_parallel, vllm/distributed/parallel_state.py@v0.9.1.
    """
    together = rollout.tensor * rollout.data
    sizes = {"tensor": rollout.tensor, "data": rollout.data, "engine": world // together}
    found = _orthogonal(sizes)
    experts = [tuple(range(begin, begin + together)) for begin in range(0, world, together)]
    return {"tensor": found["tensor"], "data": found["data"], "expert": experts}


def _orthogonal(sizes: dict[str, int]) -> dict[str, list[Ranks]]:
    """Return the groups along each dimension. The first dimension varies fastest with the rank."""
    world = math.prod(sizes.values())
    found, stride = {}, 1
    for name, size in sizes.items():
        starts = (rank for rank in range(world) if rank // stride % size == 0)
        found[name] = [tuple(start + stride * i for i in range(size)) for start in starts]
        stride *= size
    return found
