"""Scale a recipe of cann-recipes-train down for the level *train*: its own workers on two ranks, with vLLM's engine."""

from __future__ import annotations

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_training import Parallel
from npu_rl.rehearsal.model_size_keys import LAYER_OVERRIDES, SIZE_KEYS, scaled_transformer
from npu_rl.rehearsal.scale_recipe import PROMPT
from npu_rl.rehearsal.scale_rollout import RANKS, RATE, scale_for_rollout
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.layouts.placements import LegacyRanks

MODULE = "verl.trainer.main_ppo_npu"
PACKAGES = ("gpytorch==1.15.2", "setuptools==79.0.1", "six==1.17.0")
"""What Megatron's global arguments and MindSpeed-LLM import besides vLLM's packages, in the extra `rehearsal-cann`."""
SAVED = 11
"""Step of the first checkpoint: a later one than elsewhere, since each step with one takes three times as long."""
# Its experts' fused MLP wants sequence parallelism, which wants tensor parallelism.
CHECKPOINT = OutputLayout("legacy", LegacyRanks(tensor=RANKS, experts_over_tensor=True))
"""The layout of Megatron's own checkpoints that it loads, as of the recipe (npu_rl/recipes/checkpoints)."""
_SEQUENCES = 64  # of a rank, all 128 responses being there at once
_PASS_TOKENS = 2 * PROMPT


def scale_npu_trainer(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe for the rehearsal, without a checkpoint.

    Beyond what `scale_for_rollout` keeps, it keeps the trainer's own resharding between training and rollout, and
    MindSpeed's swapped optimizer.
    """
    small = scale_for_rollout(recipe, name, "expert")
    own = {
        "rollout": small.rollout.model_copy(
            update={"max_batched_tokens": _PASS_TOKENS, "max_sequences": _SEQUENCES}
        ),
        "actor": small.actor.model_copy(
            update={
                "parallel": Parallel(tensor=RANKS),
                "transformer": scaled_transformer(recipe.actor.transformer, SIZE_KEYS),
            }
        ),
        # verl's Megatron workers do not have a warm-up yet at 54c9b73.
        "optimizer": recipe.optimizer.model_copy(update={"lr": RATE, "warmup_steps": None}),
        "overrides": {key: value for key, value in recipe.overrides.items() if key not in LAYER_OVERRIDES},
    }
    return small.model_copy(update=own)
