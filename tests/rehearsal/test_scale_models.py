"""The tiny model that stands for a published one, and what its rehearsal takes over of Megatron's settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.sizing.model_config import shape_of
from npu_rl.rehearsal.scale_recipe import scale_recipe, tiny_model_of
from npu_rl.rehearsal.scale_rollout import scale_for_rollout
from tests.training.test_tiny_sums import make

GRPO = "verl-npu-grpo-qwen3-235b"


@pytest.mark.parametrize(
    ("architecture", "tiny"),
    [
        ("deepseek-v3", "tiny-deepseek-v3"),
        ("moonlight-16b-a3b", "tiny-deepseek-v3"),
        ("qwen2.5-32b", "tiny-qwen2"),
        ("qwen3-32b", "tiny-qwen3"),
        ("qwen3-30b-a3b", "tiny-qwen3-moe"),
        ("qwen3-235b-a22b", "tiny-qwen3-moe"),
    ],
)
def test_each_published_model_has_a_tiny_one(architecture: str, tiny: str) -> None:
    recipe = load_recipe(GRPO).recipe
    model = recipe.model.model_copy(update={"architecture": architecture})
    small = scale_recipe(recipe.model_copy(update={"model": model}), "small")
    assert tiny_model_of(small.model_copy(update={"model": model})) == small.model.make == tiny
    assert ("multi_latent_attention" in small.actor.transformer) == (tiny == "tiny-deepseek-v3")


def test_groups_of_experts_are_the_tiny_models_where_the_recipe_has_some() -> None:
    """A recipe that leaves them out lets tokens go to any expert, which the rehearsal must show."""
    recipe = load_recipe("deepseek-r1-zero-256die").recipe
    groups = {"moe_router_num_groups": 2, "moe_router_group_topk": 1}
    assert scale_recipe(recipe, "small").actor.transformer.items() >= groups.items()
    without = {name: value for name, value in recipe.actor.transformer.items() if name not in groups}
    recipe = recipe.model_copy(update={"actor": recipe.actor.model_copy(update={"transformer": without})})
    assert not scale_recipe(recipe, "small").actor.transformer.keys() & groups.keys()


def test_recomputation_is_as_configured_of_one_layer() -> None:
    recipe = load_recipe("deepseek-r1-zero-256die").recipe
    for scale in (scale_recipe, lambda recipe, name: scale_for_rollout(recipe, name, "expert")):
        kept = scale(recipe, "small").actor.transformer
        assert {name: kept[name] for name in kept if name.startswith("recompute")} == {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": 1,
        }


@pytest.mark.rehearsal
@pytest.mark.parametrize("kind", ["tiny-deepseek-v3", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe"])
def test_its_counted_shape_is_that_of_the_made_one(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    loaded = load_recipe(GRPO)
    model = loaded.recipe.model.model_copy(update={"make": kind, "path": None})
    known = shape_of(replace(loaded, recipe=loaded.recipe.model_copy(update={"model": model})))
    folder = make(tmp_path / "made", kind, "digit-questions") / "model"
    model = model.model_copy(update={"make": None, "path": str(folder)})
    assert shape_of(replace(loaded, recipe=loaded.recipe.model_copy(update={"model": model}))) == known


def test_sizes_of_dapo_are_scaled() -> None:
    recipe = load_recipe("verl-npu-dapo-qwen3-30b").recipe
    small = scale_recipe(recipe, "small")
    assert small.overrides["data.gen_batch_size"] == 24  # three times the batch, as 96 is of 32
    assert small.overrides["algorithm.filter_groups.max_num_gen_batches"] == 0
    assert small.overrides["reward_model.overlong_buffer.enable"] is False
    assert small.overrides["algorithm.filter_groups.metric"] == "acc"
    assert small.overrides.keys() == recipe.overrides.keys()


@pytest.mark.parametrize(
    ("name", "kept"), [("verl-npu-dapo-qwen3-235b", "dapo"), ("deepseek-r1-zero-256die", None)]
)
def test_the_reward_manager_stays_where_it_scores_one_response(name: str, kept: str | None) -> None:
    """recipe.dapo.main_dapo hands arguments to the manager that only `dapo` takes."""
    assert scale_recipe(load_recipe(name).recipe, "small").reward.manager == kept
