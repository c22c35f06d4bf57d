"""Sizes that don't fit are told before anything is tried; the tiny layout has every dimension."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from npu_rl.recipes.sizing.divisibility import check_sizes
from npu_rl.recipes.sizing.parallelism import ModelDivisors, Parallelism, RolloutSizes, TrainSizes
from npu_rl.recipes.sizing.process_groups import train_groups
from npu_rl.rehearsal.level_layout import tiny_sizes


def wrong(layout: Parallelism) -> list[str]:
    return [check.name for check in check_sizes(layout) if not check.ok]


def test_fsdp_sizes() -> None:
    layout = Parallelism(
        16, "fsdp", TrainSizes(shard=4, sequence=2), ModelDivisors(2, 4, 2), RolloutSizes(tensor=2)
    )
    assert wrong(layout) == []
    assert train_groups(layout) == {"ddp": 4, "fsdp": 4, "data": 8, "sequence": 2, "rollout_tensor": 2}
    assert wrong(replace(layout, train=TrainSizes(shard=3))) == ["fsdp-size-divides-world"]
    assert wrong(replace(layout, train=TrainSizes(sequence=8))) == ["sequence-parallel-divides-heads"]
    for heads, ranks, divides in ((2, 4, True), (8, 4, True), (3, 4, False), (6, 4, False)):
        grouped = replace(
            layout, train=TrainSizes(sequence=ranks), model=ModelDivisors(2, 12, heads), rollout=None
        )
        assert wrong(grouped) == ([] if divides else ["sequence-parallel-divides-kv-heads"])
    whole = replace(layout, train=TrainSizes(), rollout=None)
    assert train_groups(whole) == {"fsdp": 16}


SIZE = st.sampled_from([1, 2, 4, 8])


@given(SIZE, SIZE, SIZE, SIZE, SIZE, st.integers(1, 4))
def test_group_sizes_span_the_world(
    tensor: int, pipeline: int, context: int, expert: int, expert_tensor: int, times: int
) -> None:
    train = TrainSizes(tensor, pipeline, context, expert, expert_tensor)
    world = times * math.lcm(tensor * pipeline * context, expert_tensor * expert * pipeline)
    layout = Parallelism(world, "megatron", train, ModelDivisors(64, 64, 64, 64))
    assert wrong(layout) == []
    sizes = train_groups(layout)
    assert sizes["tensor"] * sizes["context"] * sizes["data"] * sizes["pipeline"] == world
    assert sizes["expert_tensor"] * sizes["expert"] * sizes["expert_data"] * sizes["pipeline"] == world
    small, reduced = tiny_sizes(layout)
    assert small <= 8
    assert wrong(replace(layout, world=small, train=TrainSizes(**reduced))) == []
    assert reduced.pop("context") == 1  # its sequences are not packed
    assert all((size > 1) == (getattr(train, name) > 1) for name, size in reduced.items())
