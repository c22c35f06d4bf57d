"""Scale a recipe of cann-recipes-train down for the level *train*: its own workers on two ranks, with vLLM's engine."""

from __future__ import annotations

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_model_and_data import Model
from npu_rl.recipes.recipe.schema_training import Parallel
from npu_rl.rehearsal.model_size_keys import LAYER_OVERRIDES, SIZE_KEYS, scaled_transformer
from npu_rl.rehearsal.scale_recipe import scale_recipe
from npu_rl.rehearsal.scale_rollout import CACHE

MODULE = "verl.trainer.main_ppo_npu"
PACKAGES = ("gpytorch==1.15.2", "setuptools==79.0.1", "six==1.17.0")
"""What Megatron's global arguments and MindSpeed-LLM import besides vLLM's packages, in the extra `rehearsal-cann`."""
STEPS = 22
SAVED = 11
"""Step of the first checkpoint: a later one than elsewhere, since each step with one takes three times as long."""
GOAL = 0.1
"""Mean reward of the last five steps that a working stack exceeds: 0.21 was seen, of 0.004 in the first step."""
_RANKS = 2  # its experts' fused MLP wants sequence parallelism, which wants tensor parallelism
_SEQUENCES = 32  # of a rank, all 64 responses being there at once
_PASS_TOKENS = 64  # two prompts


def scale_npu_trainer(recipe: Recipe, name: str) -> tuple[Recipe, list[str]]:
    """Return the recipe for the rehearsal, and the changes as text.

    Beyond what `scale_recipe` keeps, it keeps the engine with its arguments, the trainer's own resharding between
    training and rollout, and MindSpeed's swapped optimizer. The trainer computes no probabilities of the actor before
    an update, so it reports no difference to the rollout's: that the weights arrive there, the reward alone shows.
    """
    small, changes = scale_recipe(recipe, name)
    steps = min(recipe.steps, STEPS)
    rollout = small.rollout.model_copy(
        update={
            "max_batched_tokens": _PASS_TOKENS,
            "max_sequences": _SEQUENCES,
            "eager": True,  # a CPU has no graphs
            "log_probs": True,
            "engine_arguments": {**recipe.rollout.engine_arguments, **CACHE},
        }
    )
    transformer = scaled_transformer(recipe.actor.transformer, SIZE_KEYS)
    own = {
        "steps": steps,
        # With YaRN, without which its attention has no scale.
        "model": Model(make="tiny-deepseek-v3-sums", remove_padding=False, load_weights=False),
        "reward": small.reward.model_copy(update={"goal": GOAL if steps == STEPS else None}),
        "rollout": rollout,
        "actor": small.actor.model_copy(
            update={"parallel": Parallel(tensor=_RANKS), "transformer": transformer}
        ),
        "cluster": small.cluster.model_copy(update={"dies": _RANKS}),
        "env": {**recipe.env, "VLLM_DP_SIZE": str(_RANKS)},
        "overrides": {key: value for key, value in small.overrides.items() if key not in LAYER_OVERRIDES},
    }
    return small.model_copy(update=own), [*_kept(changes), *_change_lines(recipe, steps)]


def _kept(changes: list[str]) -> list[str]:
    return [line for line in changes if line.partition(":")[0] not in ("cluster", "steps", "rollout")]


def _change_lines(recipe: Recipe, steps: int) -> list[str]:
    left_out = sorted(LAYER_OVERRIDES & recipe.overrides.keys())
    return [
        f"cluster: {_RANKS} ranks for {recipe.cluster.world}: tensor parallel {_RANKS} in training, one engine each, "
        "vLLM's experts over both",
        f"steps: {steps} of {recipe.steps}, at a learning rate of 0.003 for {recipe.optimizer.lr:g}",
        f"vLLM: {_PASS_TOKENS} tokens a pass, eager",
        *(f"left out, being about the real model's layers: {key}" for key in left_out),
    ]
