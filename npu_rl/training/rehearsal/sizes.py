"""A recipe's sizes as the level *layout* takes them."""

from __future__ import annotations

import json
from typing import Any

from npu_rl.errors import RecipeError
from npu_rl.recipes.load import LoadedRecipe
from npu_rl.recipes.schema import Recipe
from npu_rl.training.rehearsal.layout_sizes import Layout, ModelSizes, RolloutSizes, TrainSizes

# Counts of published models: their config.json on the Hugging Face hub.
PUBLISHED = {
    "deepseek-v3": ModelSizes(layers=61, heads=128, kv_heads=128, experts=256, latent_attention=True)
}
TINY = ModelSizes(layers=2, heads=4, kv_heads=4, experts=8, latent_attention=True)  # on_path/npu_rl_make.py


def layout_of(loaded: LoadedRecipe) -> Layout:
    """The layout the recipe asks for. Raises RecipeError if nothing says how large its model is."""
    recipe = loaded.recipe
    parallel = recipe.actor.parallel
    return Layout(
        world=recipe.cluster.world,
        strategy=recipe.actor.strategy,
        train=TrainSizes(
            tensor=parallel.tensor or 1,
            pipeline=parallel.pipeline or 1,
            context=parallel.context or 1,
            expert=parallel.expert or 1,
            expert_tensor=parallel.expert_tensor,
            shard=-1 if parallel.shard is None else parallel.shard,
            sequence=parallel.sequence or 1,
        ),
        model=_model(loaded),
        rollout=_rollout(recipe),
        transformer=dict(recipe.actor.transformer),
    )


def _rollout(recipe: Recipe) -> RolloutSizes | None:
    if recipe.rollout.engine != "vllm":
        return None
    data = recipe.env.get("VLLM_DP_SIZE", "1")
    return RolloutSizes(tensor=recipe.rollout.tensor_parallel or 1, data=int(data) if data.isdigit() else 1)


def _model(loaded: LoadedRecipe) -> ModelSizes:
    recipe = loaded.recipe
    if recipe.model.make:
        return TINY
    if recipe.model.architecture:
        return _with_stages(PUBLISHED[recipe.model.architecture], recipe)
    place = loaded.locate(recipe.model.path or "") / "config.json"
    try:
        values = json.loads(place.read_bytes())
        return _with_stages(_read(values), recipe)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            "Nothing says how large the recipe's model is",
            where=loaded.where("model", "path"),
            why=f"{place} can't be read: {error}",
            hint=f"Put the model's config.json there, or say model.architecture: {', '.join(PUBLISHED)}",
        ) from error


def _read(values: dict[str, Any]) -> ModelSizes:
    heads = int(values["num_attention_heads"])
    return ModelSizes(
        layers=int(values["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads", heads)),
        experts=int(values.get("n_routed_experts", values.get("num_experts", 0)) or 0),
        latent_attention=values.get("kv_lora_rank") is not None,
    )


def _with_stages(sizes: ModelSizes, recipe: Recipe) -> ModelSizes:
    """With the layers of uneven pipeline stages, where the recipe gives the first and the last one's."""
    stages = recipe.actor.parallel.pipeline or 1
    first = recipe.actor.transformer.get("num_layers_in_first_pipeline_stage")
    last = recipe.actor.transformer.get("num_layers_in_last_pipeline_stage")
    if stages < 3 or not isinstance(first, int) or not isinstance(last, int):
        return sizes
    middle, rest = divmod(sizes.layers - first - last, stages - 2)
    if rest:
        return sizes
    return ModelSizes(
        sizes.layers,
        sizes.heads,
        sizes.kv_heads,
        sizes.experts,
        sizes.latent_attention,
        (first, *[middle] * (stages - 2), last),
    )
