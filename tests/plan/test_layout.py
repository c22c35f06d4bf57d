"""Stages, groups and the drawing."""

from __future__ import annotations

import pytest

from npu_rl.recipes.plan.layout_drawing import draw_layout
from npu_rl.recipes.sizing.parallelism import ModelDivisors, Parallelism, RolloutSizes, TrainSizes, layout_of
from npu_rl.recipes.sizing.process_groups import rollout_members, train_groups, train_members
from tests.plan.helpers import loaded, plan

MODEL = ModelDivisors(layers=61, heads=128, kv_heads=128, experts=256, latent_attention=True)
DRAWN = """\
training: 256 dies = TP1 x CP1 x DP32 x PP8; experts ETP1 x EP32 x EDP1
stage  layers        ranks       nodes    experts a die  parameters a die
    0  0-5 (6)       0-31        0-1      8 of 256       4.433 B   embedding
    1  6-13 (8)      32-63       2-3      8 of 256       4.683 B
    2  14-21 (8)     64-95       4-5      8 of 256       4.683 B
    3  22-29 (8)     96-127      6-7      8 of 256       4.683 B
    4  30-37 (8)     128-159     8-9      8 of 256       4.683 B
    5  38-45 (8)     160-191     10-11    8 of 256       4.683 B
    6  46-53 (8)     192-223     12-13    8 of 256       4.683 B
    7  54-60 (7)     224-255     14-15    8 of 256       5.024 B   head
groups (ranks):
  TP    256 x 1    each rank alone
  CP    256 x 1    each rank alone
  DP      8 x 32   0-31 | 32-63 | 64-95 | ... | 224-255
  PP     32 x 8    0 32 .. 224 | ... | 31 63 .. 255
  ETP   256 x 1    each rank alone
  EP      8 x 32   0-31 | 32-63 | 64-95 | ... | 224-255
  EDP   256 x 1    each rank alone

rollout: 256 dies = TP2 x DP128 -> EP256, 1 of 256 experts a die
groups (ranks):
  TP    128 x 2    0-1 | 2-3 | 4-5 | ... | 254-255
  DP      2 x 128  0 2 .. 254 | 1 3 .. 255
  EP      1 x 256  0-255"""


def test_256_dies_drawn() -> None:
    made = plan()
    assert "\n".join(draw_layout(made.facts, made.memory)) == DRAWN


def test_the_groups_of_256_dies() -> None:
    """Rank 0's as Megatron-core 0.12.1 formed them on a fake process group of 256; the engine's as vLLM 0.9.1 did."""
    found = train_members(layout_of(loaded()))
    assert found["pipeline"][0] == tuple(range(0, 256, 32))
    assert found["data"][0] == found["expert"][0] == tuple(range(32))
    assert found["expert_data"][0] == (0,)
    rollout = rollout_members(RolloutSizes(2, 128), 256)
    assert rollout["tensor"] == [(2 * i, 2 * i + 1) for i in range(128)]
    assert rollout["data"] == [tuple(range(0, 256, 2)), tuple(range(1, 256, 2))]
    assert rollout["expert"] == [tuple(range(256))]


@pytest.mark.parametrize(
    "train",
    [
        TrainSizes(tensor=2, pipeline=4, context=2, expert=4, expert_tensor=1),
        TrainSizes(tensor=4, pipeline=2, expert=2),
        TrainSizes(pipeline=8, expert=8, expert_tensor=1),
    ],
)
def test_every_rank_is_in_one_group_of_each_kind(train: TrainSizes) -> None:
    layout = Parallelism(64, "megatron", train, MODEL)
    sizes = train_groups(layout)
    for name, groups in train_members(layout).items():
        assert sorted(rank for group in groups for rank in group) == list(range(64))
        assert {len(group) for group in groups} == {sizes[name]}


def transformer(**given: object) -> list[str]:
    """The three keys about stages, said otherwise or removed."""
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    keys = ("first", names[0]), ("last", names[1]), ("each", "pipeline_num_transformer_layers")
    return [f"actor.transformer.{name}={given.get(key, '~')}" for key, name in keys]


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({}, ()),
        ({"first": 6, "last": 7}, (6, *[8] * 6, 7)),
        ({"last": 5}, (*[8] * 7, 5)),
        ({"first": 5}, (5, *[8] * 7)),
        ({"first": 6}, ()),
        ({"each": "'[[7],[7],[8],[8],[8],[8],[8],[7]]'"}, (7, 7, 8, 8, 8, 8, 8, 7)),
    ],
)
def test_the_layers_of_stages(given: dict[str, object], layers: tuple[int, ...]) -> None:
    assert layout_of(loaded(*transformer(**given))).model.stage_layers == layers
