"""cann-recipes-train's recipe for a CPU: what its own workers need there, and what stays as it is."""

from __future__ import annotations

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.rehearsal.scale_npu_trainer import CHECKPOINT
from npu_rl.rehearsal.scale_npu_trainer import scale_npu_trainer as scale
from npu_rl.rehearsal.scale_rollout import GOAL

STAGES = "actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"
SWAP = "actor_rollout_ref.actor.megatron.swap_optimizer"


def small(**changes: object) -> tuple[Recipe, Recipe]:
    recipe = load_recipe("deepseek-v3-cann-256die").recipe.model_copy(update=changes)
    return recipe, scale(recipe, "small")


def test_its_engine_optimizer_and_offloading_stay() -> None:
    recipe, made = small()
    assert (made.rollout.engine, made.trainer, made.offload) == ("vllm", recipe.trainer, recipe.offload)
    assert made.rollout.temperature == recipe.rollout.temperature == 0.9
    assert made.overrides == {key: value for key, value in recipe.overrides.items() if key != STAGES}
    assert made.overrides[SWAP] is True


def test_two_tensor_parallel_ranks_have_an_engine_each() -> None:
    _, made = small()
    assert made.actor.parallel.tensor == made.cluster.world == int(made.env["VLLM_DP_SIZE"]) == 2
    assert CHECKPOINT.ranks.tensor == 2 and CHECKPOINT.format == "legacy"
    assert made.rollout.tensor_parallel == 1


def test_a_shorter_rehearsal_has_no_goal() -> None:
    assert small()[1].reward.goal == GOAL
    _, made = small(steps=2)
    assert (made.steps, made.reward.goal) == (2, None)
