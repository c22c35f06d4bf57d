"""Where a recipe is, without reading it, and the errors that recipes raise."""

from __future__ import annotations

from pathlib import Path

from npu_rl.data import bundled_recipes
from npu_rl.errors import RecipeError
from npu_rl.manifest.find import find
from npu_rl.manifest.kind import Kind
from npu_rl.manifest.problems import Invalid


class InvalidRecipe(Invalid, RecipeError):
    """A recipe that was read, but does not follow the schema. `problems` has every fault found."""

    noun = "recipe"


RECIPE = Kind("recipe", bundled_recipes, RecipeError, InvalidRecipe)


def find_recipe(name_or_path: str) -> Path:
    """The recipe's file: a bundled name, or a path (it holds '/' or ends in .yaml or .yml).

    Raises RecipeError if there is none.
    """
    return find(RECIPE, name_or_path)
