"""Sizes that don't fit are told before anything is tried; the tiny layout has every dimension."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.recipes.sizing.divisibility import check_sizes
from npu_rl.recipes.sizing.parallelism import ModelDivisors, Parallelism, RolloutSizes, TrainSizes
from npu_rl.recipes.sizing.process_groups import rollout_groups, train_groups
from npu_rl.rehearsal.level_layout import tiny_sizes

DEEPSEEK = ModelDivisors(layers=61, heads=128, kv_heads=128, experts=256, latent_attention=True)
STAGES = (7, 8, 8, 8, 8, 8, 7, 7)
A3 = Parallelism(
    256,
    "megatron",
    TrainSizes(pipeline=8, expert=32, expert_tensor=1),
    replace(DEEPSEEK, stage_layers=STAGES),
    RolloutSizes(tensor=2, data=128),
)


def wrong(layout: Parallelism) -> list[str]:
    return [check.name for check in check_sizes(layout) if not check.ok]


def test_the_sizes_of_256_dies_fit() -> None:
    assert wrong(A3) == []
    assert train_groups(A3) == {
        "tensor": 1,
        "pipeline": 8,
        "context": 1,
        "data": 32,
        "data_context": 32,
        "model": 8,
        "expert": 32,
        "expert_tensor": 1,
        "expert_data": 1,
    }
    assert rollout_groups(RolloutSizes(2, 128)) == {
        "rollout_tensor": 2,
        "rollout_data": 128,
        "rollout_expert": 256,
    }


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            {"world": 250},
            [
                "model-parallel-divides-world",
                "expert-parallel-divides-world",
                "rollout-parallel-divides-world",
            ],
        ),
        (
            {"train": TrainSizes(pipeline=8, expert=48)},
            ["expert-parallel-divides-world", "expert-parallel-divides-experts"],
        ),
        ({"train": TrainSizes(pipeline=8, expert=32, expert_tensor=2)}, ["expert-parallel-divides-world"]),
        (
            {"train": TrainSizes(pipeline=8, tensor=3)},
            [
                "model-parallel-divides-world",
                "tensor-parallel-divides-heads",
                "expert-parallel-divides-world",
            ],
        ),
        (
            {"train": TrainSizes(pipeline=8, expert=0)},
            ["expert-parallel-divides-world", "expert-parallel-divides-experts"],
        ),
        ({"model": DEEPSEEK}, ["pipeline-layers"]),
        ({"model": replace(DEEPSEEK, stage_layers=(8,) * 8)}, ["pipeline-layers"]),
        ({"model": replace(DEEPSEEK, stage_layers=(61,))}, ["pipeline-layers"]),
        ({"model": ModelDivisors(8, 8, 8)}, ["expert-parallel-divides-experts"]),
        (
            {"model": ModelDivisors(8, 8, 3, 256), "train": TrainSizes(tensor=2)},
            ["tensor-parallel-divides-kv-heads"],
        ),
        (
            {"rollout": RolloutSizes(tensor=2, data=3)},
            ["rollout-parallel-divides-world", "rollout-parallel-divides-experts"],
        ),
        ({"rollout": RolloutSizes(tensor=256)}, ["rollout-tensor-parallel-divides-heads"]),
    ],
)
def test_sizes_that_do_not_fit_are_named(change: dict[str, Any], names: list[str]) -> None:
    assert wrong(replace(A3, **change)) == names


def test_fsdp_sizes() -> None:
    layout = Parallelism(
        16, "fsdp", TrainSizes(shard=4, sequence=2), ModelDivisors(2, 4, 2), RolloutSizes(tensor=2)
    )
    assert wrong(layout) == []
    assert train_groups(layout) == {"ddp": 4, "fsdp": 4, "data": 8, "sequence": 2, "rollout_tensor": 2}
    assert tiny_sizes(layout) == (4, {"shard": 2, "sequence": 1})
    assert wrong(replace(layout, train=TrainSizes(shard=3))) == ["fsdp-size-divides-world"]
    assert wrong(replace(layout, train=TrainSizes(sequence=8))) == ["sequence-parallel-divides-heads"]
    for heads, ranks, divides in ((2, 4, True), (8, 4, True), (3, 4, False), (6, 4, False)):
        grouped = replace(
            layout, train=TrainSizes(sequence=ranks), model=ModelDivisors(2, 12, heads), rollout=None
        )
        assert wrong(grouped) == ([] if divides else ["sequence-parallel-divides-kv-heads"])
    whole = replace(layout, train=TrainSizes(), rollout=None)
    assert train_groups(whole) == {"fsdp": 16}
    assert tiny_sizes(whole) == (2, {"shard": -1, "sequence": 1})
    assert tiny_sizes(replace(whole, world=1)) == (1, {"shard": -1, "sequence": 1})


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
    assert all((size > 1) == (getattr(train, name) > 1) for name, size in reduced.items())
