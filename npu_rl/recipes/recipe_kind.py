"""Recipes as a kind of document: where bundled ones lie, and the errors that they raise."""

from __future__ import annotations

from npu_rl.bundled import bundled_recipes
from npu_rl.config.document_kind import DocumentKind
from npu_rl.config.problems import Invalid
from npu_rl.errors import RecipeError


class InvalidRecipe(Invalid, RecipeError):
    """A recipe that was read, but does not follow the schema. `problems` has every fault found."""

    noun = "recipe"


RECIPE = DocumentKind("recipe", bundled_recipes, RecipeError, InvalidRecipe)
