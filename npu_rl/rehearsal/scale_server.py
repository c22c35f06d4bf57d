"""Scale a recipe down for verl 0.8's trainer, whose rollout is vLLM's server in processes of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.rehearsal.scale_recipe import PROMPT, RESPONSE, scale_recipe, tiny_model_of

VLLM = "0.18.0"
"""The only vLLM whose server runs on the stand-ins (rehearsal/standins/vllm)."""
BUCKET = 16
"""MB of the shared memory that weights are sent through; verl's 2048 would be allocated for a tiny model, too."""
_SEQUENCES = 64
_OURS: dict[str, Any] = {
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": BUCKET,
    "reward.num_workers": 1,
    # A CPU's platform refuses sleep (vllm/config/model.py@0.18.0); verl asks for it unless told.
    "actor_rollout_ref.rollout.enable_sleep_mode": False,
}
_PER_STRATEGY: dict[str, dict[str, Any]] = {
    "fsdp": {
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
        "actor_rollout_ref.ref.fsdp_config.dtype": "float32",
    },
    # With float32 verl's engine refuses to start (verl/workers/config/engine.py@v0.8.0).
    "megatron": {
        "actor_rollout_ref.actor.megatron.override_transformer_config.gradient_accumulation_fusion": False,
    },
}


def has_server(code: Path) -> bool:
    """Return whether a tree's verl generates with servers, as from 0.8 on, and not in its workers."""
    return (code / "verl/workers/engine_workers.py").is_file()


def model_of(recipe: Recipe) -> str:
    """Return the tiny model that the recipe has, or that replaces its own."""
    return recipe.model.make or str(tiny_model_of(recipe))


def scale_for_server(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe for the rehearsal: as for the level *train*, with vLLM's server in place of its stand-in."""
    small = scale_recipe(recipe, name)
    strategy = "megatron" if recipe.megatron else "fsdp"
    changes: dict[str, Any] = {
        "model": small.model.model_copy(
            update={"remove_padding": recipe.megatron, "load_weights": None, "make": model_of(recipe)}
        ),
        "rollout": small.rollout.model_copy(
            update={
                "engine": "vllm",
                "max_sequences": _SEQUENCES,
                "max_batched_tokens": 2048,
                "max_length": PROMPT + RESPONSE,
                "eager": True,
                "free_cache": False,
                "log_probs": True,
                "dtype": "float32",
            }
        ),
        "overrides": {**small.overrides, **_OURS, **_PER_STRATEGY[strategy]},
    }
    return small.model_copy(update=changes)
