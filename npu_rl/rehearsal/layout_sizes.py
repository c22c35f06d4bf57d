"""The tiny layout that a layout is tried on; sizes, rules and groups are the plan's."""

from __future__ import annotations

import math

from npu_rl.sizing.divisibility import fit
from npu_rl.sizing.parallelism import Layout, ModelSizes, RolloutSizes, TrainSizes
from npu_rl.sizing.process_groups import rollout_groups, train_groups

__all__ = [
    "Layout",
    "ModelSizes",
    "RolloutSizes",
    "TrainSizes",
    "fit",
    "rollout_groups",
    "tiny",
    "train_groups",
]

_TINY = 2  # the largest size of a dimension of the tiny layout


def tiny(layout: Layout) -> tuple[int, dict[str, int]]:
    """World and training sizes of the tiny layout: every dimension at most 2, and as many ranks as that takes."""
    given = layout.train
    if not layout.megatron:
        sharded = 0 < given.shard < layout.world
        shard = min(given.shard, _TINY) if sharded else -1
        world = shard * min(layout.world // given.shard, _TINY) if sharded else min(layout.world, _TINY)
        return world, {"shard": shard, "sequence": 1}
    sizes = {name: min(getattr(given, name), _TINY) for name in ("tensor", "pipeline", "context", "expert")}
    sizes["expert_tensor"] = min(layout.expert_tensor, _TINY)
    dense = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    return math.lcm(dense, sizes["expert_tensor"] * sizes["expert"] * sizes["pipeline"]), sizes
