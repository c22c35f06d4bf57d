"""The layout for a trainer with its own keys, from the keys listed in `trainer.layout`."""

from __future__ import annotations

from typing import Any

from npu_rl.common.errors import RecipeError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.parallelism import ModelDivisors, Parallelism, RolloutSizes, TrainSizes
from npu_rl.recipes.trainer_code.config_tree import ConfigTree


def own_layout(loaded: LoadedRecipe, tree: ConfigTree | None) -> Parallelism:
    """Return the layout that `trainer.layout` describes: Megatron's in training, vLLM's in the rollout.

    Args:
        tree: The trainer's composed configuration files, for keys that the recipe does not set.

    Raises:
        RecipeError: If the recipe has no `trainer.layout`, or a value is not a size.
    """
    names = loaded.recipe.trainer.layout
    if names is None:
        raise RecipeError(
            f"Unknown layout of {loaded.recipe.name}",
            where=loaded.where("trainer"),
            why="The trainer has its own keys, and trainer.layout is not set.",
            hint="Set trainer.layout.tensor, and the other sizes, to the keys that hold them.",
        )
    given = {key: one.value for key, one in loaded.settings.items()}

    def size(word: str, default: int) -> int:
        key = getattr(names, word)
        if key is None:
            return default
        entry = tree.entries.get(key) if tree else None
        value: Any = given.get(key, entry.value if entry else default)
        if value is None:
            return default
        if type(value) is not int or value < default:
            raise RecipeError(
                f"trainer.layout.{word} is not a size: {key} is {value!r}",
                where=loaded.where("trainer", "layout", word),
                hint=f"Name a key whose value is a whole number, {default} or more.",
            )
        return value

    tensor = size("tensor", 1)
    return Parallelism(
        world=loaded.recipe.cluster.world,
        strategy="megatron",
        train=TrainSizes(tensor, size("pipeline", 1), size("context", 1), size("expert", 1)),
        model=ModelDivisors(
            layers=size("layers", 1),
            heads=size("heads", 1),
            kv_heads=size("kv_heads", 1),
            experts=size("experts", 0),
        ),
        rollout=RolloutSizes(size("rollout_tensor", 1)) if names.rollout_tensor else None,
    )
