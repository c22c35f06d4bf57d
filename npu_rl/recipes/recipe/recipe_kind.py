"""Recipes as a kind of document: the location of bundled ones, and their error class."""

from __future__ import annotations

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents.document_kind import DocumentKind
from npu_rl.common.yaml_documents.problems import Invalid


class InvalidRecipe(Invalid, RecipeError):
    """A recipe that was read, but does not follow the schema. `problems` has every fault found."""

    noun = "recipe"


RECIPE = DocumentKind("recipe", bundled_recipes, RecipeError, InvalidRecipe)
