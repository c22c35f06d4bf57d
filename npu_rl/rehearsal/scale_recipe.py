"""Scale a recipe down to tiny sizes that a CPU trains in a minute, keeping its trainer and settings."""

from __future__ import annotations

from typing import Any

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_model_and_data import Data, Model, Reward
from npu_rl.recipes.recipe.schema_rollout import Rollout
from npu_rl.recipes.recipe.schema_run import Checkpoint, Cluster, Logging
from npu_rl.recipes.recipe.schema_training import Parallel
from npu_rl.rehearsal.model_size_keys import SIZE_KEYS, scaled_transformer

STEPS = 60
_BATCH, _SAMPLES, _MICRO = 8, 8, 16
PROMPT, RESPONSE = 32, 16  # tokens
_RATE = 3e-3  # with which the tiny models learn
# What is made for a published model (`model.architecture`); any other is a DeepSeek-V3.
_TINY = {
    "qwen2.5-32b": "tiny-qwen2",
    "qwen3-32b": "tiny-qwen3",
    "qwen3-30b-a3b": "tiny-qwen3-moe",
    "qwen3-235b-a22b": "tiny-qwen3-moe",
}
# Without the first, Megatron-core builds standard attention for MLA here (a TypeError about `k_channels`). The second
# needs streams, which only an accelerator has.
MEGATRON_ON_CPU = {
    "multi_latent_attention": True,
    "moe_shared_expert_overlap": False,
    "use_flash_attn": True,
}
REWARD = "npu_rl_runtime/rewards/digit_share.py:compute_score"


def scale_recipe(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe for the rehearsal.

    Kept are trainer, backend, algorithm, losses, clipping, the optimizer's schedule, offloading, adaptations and
    overrides. Model, data, batch and cluster are tiny, and the learning rate is one with which the tiny model learns.
    There is one rank; the level *layout* is about sizes over ranks.
    """
    steps = min(recipe.steps, STEPS)
    changes = {
        "name": name,
        "device": "cpu",
        "steps": steps,
        "model": Model(
            make=tiny_model_of(recipe),
            remove_padding=False,
            recompute=recipe.model.recompute,
            load_weights=False if recipe.megatron else None,
            config={} if recipe.megatron else {"_attn_implementation": "eager"},
        ),
        "data": Data(
            make="digit-questions",
            batch=_BATCH,
            prompt_length=PROMPT,
            response_length=RESPONSE,
            filter_overlong=False,
            loader_workers=0,
            shuffle=recipe.data.shuffle,
        ),
        "reward": Reward(
            function=REWARD, arguments={"digit": "7"}, manager=_manager_for_one(recipe), goal=_goal(steps)
        ),
        "rollout": Rollout(
            # The stand-in generates in both cases; Megatron's workers don't support `hf`.
            engine="vllm" if recipe.megatron else "hf",
            responses=_SAMPLES,
            temperature=recipe.rollout.temperature,
            top_p=recipe.rollout.top_p,
            top_k=recipe.rollout.top_k,
            validation=recipe.rollout.validation,
            tensor_parallel=1,
            log_prob_micro_batch=_MICRO,
        ),
        "actor": recipe.actor.model_copy(
            update={
                "mini_batch": _BATCH,
                "micro_batch": _MICRO,
                "compile": False,
                "parallel": Parallel(),
                "transformer": _transformer(recipe),
            }
        ),
        "reference": recipe.reference.model_copy(update={"micro_batch": _MICRO}),
        "optimizer": recipe.optimizer.model_copy(update={"lr": _RATE, "warmup_steps": None}),
        "cluster": Cluster(nodes=1, dies=1, dies_per_card=recipe.cluster.dies_per_card),
        "logging": Logging(samples=recipe.logging.samples),
        "checkpoint": Checkpoint(),
        "overrides": _overrides(recipe),
    }
    return recipe.model_copy(update=changes)


def tiny_model_of(recipe: Recipe) -> Any:
    """Return the tiny model (`model.make`) that replaces the recipe's own."""
    return _TINY.get(recipe.model.architecture or "", "tiny-deepseek-v3")


def _manager_for_one(recipe: Recipe) -> str | None:
    """Return the recipe's reward manager, which the entry point may need (recipe/dapo/main_dapo.py:149@796871d).

    None for `batch`: it scores all responses in one call, and the rehearsal's reward takes one.
    """
    return recipe.reward.manager if recipe.reward.manager != "batch" else None


def _transformer(recipe: Recipe) -> dict[str, Any]:
    if not recipe.megatron:
        return {}
    kept = scaled_transformer(recipe.actor.transformer, SIZE_KEYS)
    if tiny_model_of(recipe) != "tiny-deepseek-v3":
        return {**kept, "use_flash_attn": True}
    return {**kept, **MEGATRON_ON_CPU}


def _overrides(recipe: Recipe) -> dict[str, Any]:
    """Return the overrides with DAPO's sizes scaled: prompts generated, attempts to fill a batch, long responses."""
    generated = recipe.overrides.get("data.gen_batch_size")
    scaled: dict[str, Any] = {
        # A random model answers most questions alike, so most groups are left out: 0 is no limit.
        "algorithm.filter_groups.max_num_gen_batches": 0,
        # A response of 16 tokens is no long one; DAPO's reward manager compares the lengths all the same.
        "reward_model.overlong_buffer.enable": False,
        "reward_model.overlong_buffer.len": RESPONSE // 4,
        "reward_model.max_resp_len": RESPONSE,
    }
    if isinstance(generated, int) and recipe.data.batch:
        scaled["data.gen_batch_size"] = max(1, generated * _BATCH // recipe.data.batch)
    return {name: scaled.get(name, value) for name, value in recipe.overrides.items()}


def _goal(steps: int) -> float | None:
    """Return the reward that a working stack exceeds: 0.9 after 60 steps; None for shorter rehearsals."""
    return 0.9 if steps >= STEPS else None
