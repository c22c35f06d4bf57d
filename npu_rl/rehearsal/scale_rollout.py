"""Scale a recipe down for the level *rollout*: two ranks, vLLM's engine, a model half trained on small sums."""

from __future__ import annotations

from typing import Any, Literal

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_model_and_data import Model, Reward
from npu_rl.recipes.recipe.schema_run import Cluster
from npu_rl.recipes.recipe.schema_training import Parallel
from npu_rl.rehearsal.model_size_keys import LAYER_KEYS, scaled_transformer
from npu_rl.rehearsal.scale_recipe import MEGATRON_ON_CPU, PROMPT, scale_recipe

Case = Literal["expert", "pipeline"]
CASES: tuple[Case, ...] = ("expert", "pipeline")
"""Parallelism of the two training ranks: experts over both, or one stage each. vLLM's experts are over both."""

RANKS = 2
STEPS = 16
_BATCH, _SAMPLES, _MICRO = 16, 8, 16
_LENGTH = 12  # tokens of a response
RATE = 3e-4
"""Learning rate: with 5e-4 to 2e-3 the reward fell again within 16 steps in some runs, also below where it began."""
_WARMUP = 4  # steps
# 4096 tokens; by default a CPU's cache has 1 GiB, which is allocated again at every step.
CACHE = {"block_size": 16, "num_gpu_blocks_override": 256}
_RESUMED_SCHEDULE = "actor_rollout_ref.actor.optim.use_checkpoint_opt_param_scheduler"
GOAL = 0.5
"""Mean accuracy of the last steps that is required, which is that of the made model: training must not lead astray.

0.56 and 0.58 were seen; a plain GRPO of that model in four seeds had 0.56 to 0.67. A step's mean of 128 varies by 0.04.
"""
_DEEPSCALER = "npu_rl_runtime/rewards/deepscaler.py"
ACCURACY_SHARE = 0.67
"""Highest reward of a response if its format counts too, since it is only a box."""


def scale_for_rollout(recipe: Recipe, name: str, case: Case) -> Recipe:
    """Return the recipe for the rehearsal, without a checkpoint.

    Beyond what the level *train* keeps, it keeps the engine and its arguments, freeing its memory, chunked prefill,
    the kinds of offloading, YaRN, loading a checkpoint into the actor, and a reward of `deepscaler`.
    """
    steps = min(recipe.steps, STEPS)
    small = scale_recipe(recipe, name)
    changes = {
        "steps": steps,
        "model": Model(make="tiny-deepseek-v3-sums", remove_padding=False, load_weights=True),
        "data": small.data.model_copy(
            update={
                "make": "boxed-sums",
                # One epoch: verl resumes a later one in the order of the first (55e3c5b with torchdata 0.11.0).
                "rows": STEPS * _BATCH,
                "batch": _BATCH,
                "response_length": _LENGTH,
            }
        ),
        "reward": _reward(recipe, steps),
        "rollout": recipe.rollout.model_copy(
            update={
                "responses": _SAMPLES,
                "tensor_parallel": 1,
                "log_prob_micro_batch": _MICRO,
                # Below the longest sequence, so that prompts are chunked, and below the number of a rank's sequences.
                "max_batched_tokens": PROMPT,
                "max_sequences": PROMPT,
                "max_length": None,
                "eager": True,  # a CPU has no graphs
                "log_probs": True,
                "engine_arguments": {**recipe.rollout.engine_arguments, **CACHE},
            }
        ),
        "actor": small.actor.model_copy(
            update={
                "mini_batch": _BATCH,
                "parallel": Parallel(tensor=1, expert_tensor=1, **{case: RANKS}),
                "transformer": _transformer(recipe),
            }
        ),
        # A warm-up begins at a rate of 0: a quick rehearsal would have one step only whose weights have changed.
        "optimizer": recipe.optimizer.model_copy(
            update={"lr": RATE, "warmup_steps": _WARMUP if steps > 2 * _WARMUP else 0}
        ),
        "cluster": Cluster(nodes=1, dies=RANKS, dies_per_card=recipe.cluster.dies_per_card),
        "env": {**recipe.env, "VLLM_DP_SIZE": str(RANKS)},
        "overrides": _overrides(recipe),
    }
    return small.model_copy(update=changes)


def _overrides(recipe: Recipe) -> dict[str, Any]:
    """Return the overrides. For a recipe with a constant rate they also resume the schedule of the warm-up.

    By default verl begins the schedule anew (verl/utils/checkpoint/megatron_checkpoint_manager.py:335@55e3c5b), which
    a constant rate does not show: neither must the rehearsal's own warm-up.
    """
    if recipe.optimizer.warmup_steps:
        return recipe.overrides
    return {_RESUMED_SCHEDULE: True, **recipe.overrides}


def _reward(recipe: Recipe, steps: int) -> Reward:
    """Return the recipe's reward if it can score the sums' data source, else the trainer's for that source."""
    reward = recipe.reward if _scores_the_sums(recipe.reward) else Reward()
    best = ACCURACY_SHARE if reward.arguments.get("variant") == "format" else 1.0
    return reward.model_copy(update={"goal": GOAL * best if steps >= STEPS else None})


def _scores_the_sums(reward: Reward) -> bool:
    return (reward.function or "").partition(":")[0] == _DEEPSCALER


def _transformer(recipe: Recipe) -> dict[str, Any]:
    kept = scaled_transformer(recipe.actor.transformer, LAYER_KEYS)
    return {**kept, **MEGATRON_ON_CPU}
