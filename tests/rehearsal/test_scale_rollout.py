"""What is kept and what is made small where vLLM's engine is rehearsed."""

from __future__ import annotations

import pytest

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.rehearsal.scale_rollout import CASES, GOAL, RANKS, Case, scale_for_rollout
from npu_rl.runtime.deepscaler import score


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe("deepseek-r1-zero-256die").recipe


@pytest.mark.parametrize("case", CASES)
def test_the_rollouts_experts_are_over_both_ranks(recipe: Recipe, case: Case) -> None:
    small = scale_for_rollout(recipe, "r", case)
    assert small.cluster.world == RANKS
    assert small.env["VLLM_DP_SIZE"] == str(RANKS // (small.rollout.tensor_parallel or 1))
    assert small.rollout.engine_arguments["enable_expert_parallel"] is True


@pytest.mark.parametrize("case", CASES)
def test_what_the_engine_does_with_memory_and_prompts_is_kept(recipe: Recipe, case: Case) -> None:
    small = scale_for_rollout(recipe, "r", case)
    assert (small.rollout.engine, small.rollout.free_cache, small.rollout.chunked_prefill) == (
        "vllm",
        True,
        True,
    )
    assert small.data.prompt_length is not None and small.data.response_length is not None
    longest = small.data.prompt_length + small.data.response_length
    assert small.rollout.max_batched_tokens is not None and small.rollout.max_batched_tokens < longest
    assert small.offload == recipe.offload
    assert small.adaptations == recipe.adaptations
    assert small.actor.transformer["rope_scaling_type"] == "yarn"
    assert "num_layers_in_first_pipeline_stage" not in small.actor.transformer


def test_its_own_engine_arguments_are_kept(recipe: Recipe) -> None:
    small = scale_for_rollout(recipe, "r", "expert")
    given = dict(small.rollout.engine_arguments)
    assert given.pop("num_gpu_blocks_override") * given.pop("block_size") >= 32 * (32 + 12)
    assert given == recipe.rollout.engine_arguments


def test_the_recipes_own_reward_is_kept(recipe: Recipe) -> None:
    """Its function and its manager: the sums are of the data source that it scores."""
    small = scale_for_rollout(recipe, "r", "expert")
    assert recipe.reward.function == "npu_rl_runtime/rewards/deepscaler.py:compute_scores"
    assert (small.reward.function, small.reward.manager) == (recipe.reward.function, "batch")
    assert small.reward.goal == GOAL
    assert small.data.make == "boxed-sums"


def test_the_goal_is_what_a_box_alone_can_reach() -> None:
    """With the format's share, a response of nothing but the right box has 0.67."""
    recipe = load_recipe("deepseek-r1-zero-256die", ["reward.arguments.variant=format"]).recipe
    small = scale_for_rollout(recipe, "r", "expert")
    assert small.reward.arguments == {"variant": "format"}
    assert small.reward.goal == pytest.approx(GOAL * score.ACCURACY_SHARE)


def test_a_short_rehearsal_has_no_goal(recipe: Recipe) -> None:
    short = recipe.model_copy(update={"steps": 2})
    small = scale_for_rollout(short, "r", "expert")
    assert small.reward.goal is None
    assert small.optimizer.warmup_steps == 0  # whose first update has a rate of 0
    assert scale_for_rollout(recipe, "r", "expert").reward.goal is not None
