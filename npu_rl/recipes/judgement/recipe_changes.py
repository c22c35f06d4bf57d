"""Differences between a recipe and its base, and the recipe with one of them put back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.document import Plain
from npu_rl.common.yaml_documents.problems import KeyPath, dotted
from npu_rl.common.yaml_documents.text_checks import is_manifest_path
from npu_rl.recipes.recipe.derived_recipe import derive_recipe
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.recipe.schema import Recipe

_LIMIT = 64  # changed values; a recipe that differs in more of them is another recipe
_NOT_TRIED = frozenset({"schema", "name", "title", "manifest", "extends", "device", "plan", "faults"})


@dataclass(frozen=True)
class RecipeChange:
    """A value that differs from the recipe's base.

    Attributes:
        path: The recipe's key.
        base_value: The value in the base; None if it does not set the key.
        restored: The recipe with the base's value in place of this one.
    """

    path: KeyPath
    base_value: str | None
    restored: LoadedRecipe

    @property
    def fix(self) -> str:
        """Edit that puts the base's value back."""
        key = dotted(self.path)
        return f"leave out {key}" if self.base_value is None else f"set {key} back to {self.base_value}"


def recipe_changes(loaded: LoadedRecipe) -> list[RecipeChange]:
    """Return the single values that differ from the recipe's base, in the order of the recipe.

    The base is the recipe that it extends, else the bundled one of the same name, of which it is a copy, else its
    file without the arguments of the command line. Lists and paths are not compared.
    """
    base = _base(loaded)
    if base is None:
        return []
    before, now = dict(_leaves(base.data)), dict(_leaves(loaded.data))
    paths = [path for path in {**now, **before} if now.get(path) != before.get(path)]
    if len(paths) > _LIMIT:
        return []
    found = []
    for path in paths:
        restored = _restored(loaded, path, before.get(path))
        if restored is not None:
            found.append(RecipeChange(path, before.get(path), restored))
    return found


def _base(loaded: LoadedRecipe) -> LoadedRecipe | None:
    parent, name = loaded.recipe.extends, loaded.recipe.name
    try:
        if loaded.bundled:
            return load_recipe(loaded.path.stem) if loaded.overrides else None
        if parent:
            return load_recipe(str(loaded.path.parent / parent) if is_manifest_path(parent) else parent)
        if name in bundled_recipes():
            return load_recipe(name)
        return load_recipe(str(loaded.path)) if loaded.overrides else None
    except NpuRlError:  # a file that has changed since
        return None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            if path or name not in _NOT_TRIED:
                yield from _leaves(item, (*path, name))
    elif isinstance(value, str) and "/" not in value:
        yield path, value


def _restored(loaded: LoadedRecipe, path: tuple[str, ...], value: str | None) -> LoadedRecipe | None:
    """Return the recipe with another value of one key; None if that makes it invalid."""
    data: dict[str, Plain] = copy.deepcopy(dict(loaded.data))
    section: Any = data
    for part in path[:-1]:
        section = section.setdefault(part, {})
    if value is None:
        del section[path[-1]]
    else:
        section[path[-1]] = value
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError:
        return None
    return derive_recipe(loaded, recipe, "the base")
