"""The checkpoint format and layout that a recipe's stack loads."""

from __future__ import annotations

from npu_rl.common.errors import RecipeError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.own_layout import own_layout
from npu_rl.recipes.sizing.parallelism import layout_of
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.layouts.placements import LegacyRanks

# The first three load with Megatron-core 0.12.1's dist_checkpointing (verl/utils/model.py:538@55e3c5b), at any layout.
# Pai's trainers load with that of core 0.14.0rc0 and 0.15.0rc3, whose keys are the same for verl's
# sharded_state_dict() without metadata (megatron/core/transformer/moe/experts.py@6a6cd47 and @4af25fe).
_DIST = (
    "deepseek-r1-zero",
    "quickstart",
    "verl-npu-plugin",
    "pai-megatron-deepseek-v3",
    "pai-megatron-deepseek-v3-mcore-250908",
)
# use_dist_checkpointing is Megatron's legacy load_checkpoint there (verl_patches/workers/megatron_workers.py:146
# of cann-recipes-train@bcd3be7), with moe_tp_extend_ep (train_engine/initialize_training.py:183).
_LEGACY = "deepseek-v3-cann"
# Megatron's load_checkpoint, too (mindspeed_rl/workers/integrated_worker.py and cli/train_grpo.py@62e9928).
_LEGACY_OWN_KEYS = "mindspeed-rl-grpo"

_LAYERS = "actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"
_OWN_LAYERS = "actor_config.num_layer_list"


def recipe_layout(loaded: LoadedRecipe) -> OutputLayout:
    """Return the checkpoint format and, for a legacy checkpoint, the recipe's ranks.

    Raises:
        RecipeError: If the recipe's trainer loads no Megatron checkpoint, or its stack has no table here.
    """
    recipe = loaded.recipe
    if recipe.has_own_keys and recipe.manifest == _LEGACY_OWN_KEYS:
        return OutputLayout("legacy", _ranks_of_own_keys(loaded))
    if not (recipe.has_own_keys or recipe.megatron):
        raise RecipeError(
            "The trainer of this recipe loads Hugging Face's format",
            where=loaded.where("actor"),
            why="Its strategy is not megatron: it loads the BF16 weights without a conversion.",
        )
    if recipe.manifest in _DIST and not recipe.has_own_keys:
        return OutputLayout("torch_dist")
    if recipe.manifest == _LEGACY and not recipe.has_own_keys:
        return OutputLayout("legacy", _ranks(loaded))
    raise RecipeError(
        f"Unsupported stack {recipe.manifest}: its tensor names are not in a table",
        where=loaded.where("manifest"),
        why=f"Supported stacks: {', '.join((*_DIST, _LEGACY, _LEGACY_OWN_KEYS))}.",
        hint="If it loads Megatron-core 0.12.1's torch_dist format, pass --format torch_dist instead of --layout",
    )


def _ranks(loaded: LoadedRecipe) -> LegacyRanks:
    layout = layout_of(loaded)
    given = loaded.recipe.overrides.get(_LAYERS)
    layers = tuple(given) if isinstance(given, list) else layout.stage_layers
    if not layers:
        raise RecipeError(
            "The layers can't be divided evenly among the pipeline stages, and no list of layers is set",
            where=loaded.where("actor", "parallel"),
            why=f"{layout.model.layers} layers on {layout.train.pipeline} stages.",
            hint=f"overrides.{_LAYERS}: [...]",
        )
    return LegacyRanks(layout.train.tensor, layers, layout.train.expert, experts_over_tensor=True)


def _ranks_of_own_keys(loaded: LoadedRecipe) -> LegacyRanks:
    """Return the ranks from the keys in `trainer.layout`; stages are equal unless the recipe lists their layers."""
    names, values = loaded.recipe.trainer.layout, loaded.recipe.overrides
    sizes = [key for key in (names.tensor, names.pipeline) if key] if names else []
    if names is None or names.expert is not None or any(key not in values for key in sizes):
        raise RecipeError(
            "The parallel sizes of the recipe are unknown",
            where=loaded.where("trainer"),
            why="trainer.layout must name keys for tensor and pipeline that the recipe sets, and none for expert.",
        )
    train, given = own_layout(loaded, None).train, values.get(_OWN_LAYERS)
    if given is None:
        return LegacyRanks(train.tensor, stages=train.pipeline)
    try:
        return LegacyRanks(train.tensor, tuple(map(int, str(given).split(","))))
    except ValueError as error:
        raise RecipeError(
            f"Invalid list of layers: {given!r}",
            where=loaded.where("overrides", _OWN_LAYERS),
            hint=f"overrides.{_OWN_LAYERS}: 14,14",
        ) from error
