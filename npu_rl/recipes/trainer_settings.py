"""A recipe as the trainer's settings: one line per key, with the recipe's key that asked for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from npu_rl.config.problems import KeyPath, dotted
from npu_rl.recipes.recipe_fields import Key
from npu_rl.recipes.schema import Recipe

OVERRIDES = "overrides"


@dataclass(frozen=True)
class Setting:
    """`key` of the trainer gets `value` (None, bool, int, float, text, list or mapping of these).

    path: the recipe's key that says so; empty for what npu-rl adds by itself. raw: it stands in `overrides`.
    """

    key: str
    value: Any
    path: KeyPath = ()
    raw: bool = False

    @property
    def said_by(self) -> str:
        """Where it comes from, for people."""
        return dotted(self.path) if self.path else "npu-rl"


def settings(recipe: Recipe) -> list[Setting]:
    """What the recipe says to the trainer, in the schema's order, `overrides` last.

    A mapping such as `actor.transformer` gives one setting per key. What is left out gives none.
    """
    return [*_of(recipe, (), recipe.megatron), *_raw(recipe.overrides)]


def config_name(recipe: Recipe) -> str:
    """The Hydra configuration the run starts from."""
    return recipe.trainer.config or ("ppo_megatron_trainer" if recipe.megatron else "ppo_trainer")


def flat(given: Collection[Setting]) -> Iterator[Setting]:
    """Each key of a mapping as a setting of its own.

    Hydra takes `+section.key=value`, but not `section={key: value}` where the section has no such key.
    """
    for setting in given:
        if isinstance(setting.value, Mapping) and setting.value:
            inner = [
                replace(setting, key=f"{setting.key}.{name}", value=value, path=(*setting.path, str(name)))
                for name, value in setting.value.items()
            ]
            yield from flat(inner)
        else:
            yield setting


def merged(given: list[Setting]) -> dict[str, Setting]:
    """The last setting of each key: an override replaces what a section said."""
    result: dict[str, Setting] = {}
    for setting in given:
        result.pop(setting.key, None)
        result[setting.key] = setting
    return result


def unheard(recipe: Recipe) -> list[KeyPath]:
    """What the recipe says and its backend has no key for: `actor.parallel.tensor` of an fsdp recipe."""
    return list(_unheard(recipe, (), recipe.megatron))


def _of(model: BaseModel, path: KeyPath, megatron: bool) -> Iterator[Setting]:
    for name, value, key in _values(model):
        here = (*path, name)
        if isinstance(value, BaseModel):
            yield from _of(value, here, megatron)
        elif key is not None and value is not None:
            for target in key.names(megatron):
                yield from _expand(target, value, here)


def _expand(key: str, value: Any, path: KeyPath) -> Iterator[Setting]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield Setting(f"{key}.{name}", item, (*path, name))
    else:
        yield Setting(key, value, path)


def _raw(overrides: Mapping[str, Any]) -> Iterator[Setting]:
    for key, value in overrides.items():
        yield Setting(key, value, (OVERRIDES, key), raw=True)


def _unheard(model: BaseModel, path: KeyPath, megatron: bool) -> Iterator[KeyPath]:
    for name, value, key in _values(model):
        if name not in model.model_fields_set and not isinstance(value, BaseModel):
            continue
        if isinstance(value, BaseModel):
            yield from _unheard(value, (*path, name), megatron)
        elif key is not None and value not in (None, {}) and not key.names(megatron):
            yield (*path, name)


def _values(model: BaseModel) -> Iterator[tuple[str, Any, Key | None]]:
    for name, field in type(model).model_fields.items():
        key = next((item for item in field.metadata if isinstance(item, Key)), None)
        yield field.alias or name, getattr(model, name), key
