"""The recipe's JSON Schema, for editors: the committed file recipes/recipe.schema.json."""

from __future__ import annotations

from npu_rl.manifest.json_schema import export_schema
from npu_rl.recipes.schema import Recipe


def recipe_schema() -> str:
    """The schema as JSON text: keys sorted, indent 2, one newline at the end."""
    return export_schema(Recipe, "npu-rl recipe")
