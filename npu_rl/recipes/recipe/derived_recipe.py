"""A loaded recipe with some values replaced. Unchanged values keep their text and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from npu_rl.common.yaml_documents.document import Plain
from npu_rl.common.yaml_documents.layers import Origin
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, recipe_digest
from npu_rl.recipes.recipe.recipe_fields import read_scalar
from npu_rl.recipes.recipe.schema import Recipe


def derive_recipe(loaded: LoadedRecipe, recipe: Recipe, by: str) -> LoadedRecipe:
    """Return `loaded` with the values of `recipe`.

    Args:
        by: The origin of the values that differ, as messages name it.
    """
    origins: dict[KeyPath, Origin] = {(): loaded.origins[()]}

    def merged(new: Any, old: Any, written: Plain, path: KeyPath) -> Plain:
        if new == old and written is not None:
            origins.update((at, one) for at, one in loaded.origins.items() if at[: len(path)] == path)
            return written
        origins[path] = loaded.origins[path] if path in loaded.origins and _items(new) else Origin(by, 0)
        if not (now := _items(new)):
            return _text(new)
        before, texts = _items(old), _items(written)
        order = sorted(now, key=lambda name: name not in texts)
        return {name: merged(now[name], before.get(name), texts.get(name), (*path, name)) for name in order}

    data = merged(recipe, loaded.recipe, dict(loaded.data), ())
    assert isinstance(data, dict)
    data = {name: value for name, value in data.items() if name != "extends"}
    return replace(loaded, recipe=recipe, data=data, origins=origins, digest=recipe_digest(recipe))


def _items(value: Any) -> dict[str, Any]:
    """Return the items of a mapping, or the fields set in a model but for None, by their names in a file."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        given = {name: getattr(value, name) for name in fields if name in value.model_fields_set}
        return {fields[name].alias or name: item for name, item in given.items() if item is not None}
    return dict(value) if isinstance(value, Mapping) else {}


def _text(value: Any) -> Plain:
    """Return a value as written in a recipe; text that looks like another type is quoted."""
    if isinstance(value, (BaseModel, Mapping)):
        return {name: _text(item) for name, item in _items(value).items()}
    if isinstance(value, (list, tuple)):
        return [_text(item) for item in value]
    if value is None:
        return Quoted("null")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if read_scalar(value) == value else Quoted(value)
    return repr(value)
