"""Rehearsing a recipe whose trainer's keys are its own: which levels, by which sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError, RecipeError, UsageError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.sizing.own_layout import own_layout
from npu_rl.recipes.sizing.parallelism import ModelDivisors, Parallelism, RolloutSizes, TrainSizes
from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.rehearsal import rehearse
from npu_rl.rehearsal.choose_levels import choose_levels
from npu_rl.training.monitor.screen import PlainScreen
from tests.code_trees import lay
from tests.own_trainer import TREE, write_recipe
from tests.training.fake_run import FakeRun

SIZES = """
training: {tensor: 2, pipeline: 2, context: null}
small: {layers: 8, heads: 16, kv_heads: 4, experts: 32}
engine: {tensor: 4}
"""
LAYOUT = (
    "trainer.layout={tensor: training.tensor, pipeline: training.pipeline, context: training.context, layers: "
    "small.layers, heads: small.heads, kv_heads: small.kv_heads, experts: small.experts, rollout_tensor: engine.tensor}"
)


def loaded(folder: Path, *overrides: str) -> LoadedRecipe:
    return load_recipe(
        str(write_recipe(folder)), ["trainer.config=sizes", "cluster.dies=16", LAYOUT, *overrides]
    )


SIZES_AT = ConfigLocation("own.train", "sizes", "configs")


def layout(folder: Path, *overrides: str) -> Parallelism:
    code = lay(folder / "code", {**TREE, "configs/sizes.yaml": SIZES})
    return own_layout(loaded(folder, *overrides), compose_config(code, SIZES_AT))


def test_the_layout_is_by_the_values_of_the_keys_that_are_named(tmp_path: Path) -> None:
    assert layout(tmp_path, "training.pipeline=4") == Parallelism(
        world=16,
        strategy="megatron",
        train=TrainSizes(tensor=2, pipeline=4, context=1, expert=1),
        model=ModelDivisors(layers=8, heads=16, kv_heads=4, experts=32),
        rollout=RolloutSizes(tensor=4),
    )


def test_without_words_for_it_or_with_a_value_that_is_no_size_it_is_said(tmp_path: Path) -> None:
    code = lay(tmp_path / "code", {**TREE, "configs/sizes.yaml": SIZES})
    without = load_recipe(str(write_recipe(tmp_path)))
    with pytest.raises(RecipeError, match=r"trainer\.layout is not set"):
        own_layout(without, compose_config(code, SIZES_AT))
    with pytest.raises(
        RecipeError, match=r"trainer\.layout\.tensor is not a size: training\.tensor is 'two'"
    ):
        layout(tmp_path, "training.tensor=two")


@pytest.fixture
def fake(tmp_path: Path) -> FakeRun:
    lay(tmp_path / "code", TREE)
    return FakeRun(tmp_path, str(write_recipe(tmp_path)))


@pytest.mark.parametrize("level", ["train", "rollout"])
def test_levels_that_train_are_refused_with_the_reason(fake: FakeRun, level: str) -> None:
    with pytest.raises(UsageError, match=f"The level {level} can't rehearse demo") as caught:
        rehearse.rehearse(fake.prepared([]), level, PlainScreen(), lambda _: None)
    assert "npu-rl can't scale them down" in str(caught.value)


def test_its_imports_are_rehearsed(fake: FakeRun) -> None:
    with pytest.raises(NpuRlError, match="The check of imports did not finish"):
        rehearse.rehearse(fake.prepared(["raise"]), "imports", PlainScreen(), lambda _: None)


def test_all_levels_are_those_that_are_possible(fake: FakeRun) -> None:
    assert choose_levels(fake.prepared([]), "all").levels == ("imports",)
    assert choose_levels(fake.prepared([], [LAYOUT]), "all").levels == ("imports", "layout")
