"""A loaded recipe with some values replaced. Unchanged values keep their text and origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
    return _RecipeDerivation(loaded, Origin(by, 0)).of(recipe)


class _RecipeDerivation:
    def __init__(self, loaded: LoadedRecipe, writer: Origin) -> None:
        self._loaded = loaded
        self._writer = writer
        self._origins: dict[KeyPath, Origin] = {(): loaded.origins[()]}

    def of(self, recipe: Recipe) -> LoadedRecipe:
        data = self._mapping(recipe, self._loaded.recipe, self._loaded.data, ())
        data.pop("extends", None)
        return dataclasses.replace(
            self._loaded, recipe=recipe, data=data, origins=self._origins, digest=recipe_digest(recipe)
        )

    def _mapping(self, new: Any, old: Any, written: Any, path: KeyPath) -> dict[str, Plain]:
        before, now, texts = _items(old), _items(new), written if isinstance(written, Mapping) else {}
        order = [*(name for name in texts if name in now), *(name for name in now if name not in texts)]
        typed = isinstance(new, BaseModel)
        return {
            name: self._value(now[name], before.get(name), texts.get(name), (*path, name), typed)
            for name in order
        }

    def _value(self, new: Any, old: Any, written: Plain, path: KeyPath, typed: bool) -> Plain:
        """Return a value as text.

        Args:
            typed: The value is a field of a model, so its type is known.
        """
        if isinstance(new, (BaseModel, Mapping)) and _items(new):
            self._origins[path] = self._loaded.origins.get(path, self._writer)
            return self._mapping(new, old, written, path)
        if new == old and written is not None:
            self._keep(path)
            return written
        self._origins[path] = self._writer
        return _text(new, typed)

    def _keep(self, path: KeyPath) -> None:
        self._origins |= {
            place: origin for place, origin in self._loaded.origins.items() if place[: len(path)] == path
        }


def _items(value: Any) -> dict[str, Any]:
    """Return the fields set in a model, by their names in a file, or the items of a mapping.

    A model's field that is None is left out.
    """
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        given = {name: getattr(value, name) for name in fields if name in value.model_fields_set}
        return {fields[name].alias or name: item for name, item in given.items() if item is not None}
    return dict(value) if isinstance(value, Mapping) else {}


def _text(value: Any, typed: bool) -> Plain:
    """Return a value as written in a recipe. In an open mapping, text that looks like another type is quoted."""
    if isinstance(value, (BaseModel, Mapping)):
        return {name: _text(item, isinstance(value, BaseModel)) for name, item in _items(value).items()}
    if isinstance(value, (list, tuple)):
        return [_text(item, typed) for item in value]
    if value is None:
        return Quoted("null")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if typed or read_scalar(value) == value else Quoted(value)
    return repr(value)
