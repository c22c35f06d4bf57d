"""The format and ranks that each bundled recipe's stack loads."""

from __future__ import annotations

import pytest

from npu_rl.common.errors import RecipeError
from npu_rl.recipes.checkpoints.recipe_layout import recipe_layout
from npu_rl.recipes.recipe.load_recipe import load_recipe


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-r1-zero-256die",
        "verl-npu-grpo-qwen3-235b",
        "pai-deepseek-v3-128gpu",
        "pai-deepseek-v3-128gpu-mcore-250908",
    ],
)
def test_verl_loads_torch_dist_at_any_layout(name: str) -> None:
    assert recipe_layout(load_recipe(name)).format == "torch_dist"


def test_cann_loads_the_files_of_its_ranks() -> None:
    layout = recipe_layout(load_recipe("deepseek-v3-cann-256die"))
    assert layout.format == "legacy"
    ranks = layout.ranks
    assert (ranks.tensor, ranks.layers, ranks.expert) == (4, (7, 7, 8, 8, 8, 8, 8, 7), 8)
    assert ranks.experts_over_tensor


def test_mindspeed_rl_loads_the_files_of_its_ranks() -> None:
    name = "mindspeed-rl-grpo-qwen25-7b"
    ranks = recipe_layout(load_recipe(name)).ranks
    assert (ranks.tensor, ranks.layers, ranks.stages, ranks.expert) == (4, (), 1, 1)
    two = ["overrides.actor_config.pipeline_model_parallel_size=2"]
    assert recipe_layout(load_recipe(name, two)).ranks.stages == 2
    assert recipe_layout(load_recipe(name, ["overrides.actor_config.num_layer_list=20,8"])).ranks.layers == (
        20,
        8,
    )
    for wrong in ("num_layer_list=a", "tensor_model_parallel_size=0"):
        with pytest.raises(RecipeError):
            recipe_layout(load_recipe(name, [f"overrides.actor_config.{wrong}"]))
