"""The trainer's settings that a recipe makes, each with the recipe's key it comes from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import BaseModel

from npu_rl.common.yaml_documents.problems import KeyPath, dotted
from npu_rl.recipes.recipe.recipe_fields import Key, key_of
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_trainer import OwnKeys
from npu_rl.recipes.trainer_code.config_location import ConfigLocation

OVERRIDES = "overrides"
MODEL_ENGINE = "model_engine"
"""The group of verl 0.7.1 and newer that chooses the files of a training backend: dp, megatron and others."""


@dataclass(frozen=True)
class Setting:
    """The value of one key of the trainer.

    Attributes:
        key: The trainer's key.
        value: None, bool, int, float, text, or a list or mapping of these.
        path: The recipe's key that sets it; empty if npu-rl sets it.
        from_overrides: Whether it is written in `overrides`.
    """

    key: str
    value: Any
    path: KeyPath = ()
    from_overrides: bool = False

    @property
    def origin(self) -> str:
        """The recipe's key, or npu-rl."""
        return dotted(self.path) if self.path else "npu-rl"


def list_settings(recipe: Recipe) -> list[Setting]:
    """Return the trainer's settings that a recipe makes, in the schema's order, with `overrides` last.

    A mapping such as `actor.transformer` gives one setting per key. Keys that are left out give none.
    """
    keys = recipe.trainer.keys
    typed = _section_settings(recipe) if keys is None else _own_key_settings(recipe, keys)
    given = recipe.overrides.items()
    return [*typed, *(Setting(key, value, (OVERRIDES, key), from_overrides=True) for key, value in given)]


def config_name(recipe: Recipe) -> str:
    """Return the name of the Hydra configuration that the run starts from."""
    return recipe.trainer.config or ("ppo_megatron_trainer" if recipe.megatron else "ppo_trainer")


def config_location(recipe: Recipe) -> ConfigLocation:
    """Return the location of the Hydra configuration that the run starts from."""
    trainer = recipe.trainer
    return ConfigLocation(trainer.module, config_name(recipe), trainer.config_path, _group_choices(recipe))


def engine_setting(recipe: Recipe) -> Setting | None:
    """Return the setting of `model_engine` that follows from actor.strategy, for a tree that has this group.

    None where the tree's default is right (dp, for fsdp and fsdp2), or `overrides` sets it.
    """
    if not recipe.megatron or MODEL_ENGINE in recipe.overrides:
        return None
    return Setting(MODEL_ENGINE, "megatron", ("actor", "strategy"))


def _group_choices(recipe: Recipe) -> dict[str, str | None]:
    """Return the Hydra group options that a recipe sets. Only group names have no dot among verl's keys."""
    engine = engine_setting(recipe)
    chosen = {} if engine is None else {engine.key: engine.value}
    given = {key: value for key, value in recipe.overrides.items() if "." not in key}
    return chosen | {key: value for key, value in given.items() if value is None or isinstance(value, str)}


def flatten_mappings(given: Collection[Setting]) -> Iterator[Setting]:
    """Yield each key of a mapping as a setting of its own.

    Hydra takes `+section.key=value`, but not `section={key: value}` where the section has no such key.
    """
    for setting in given:
        if isinstance(setting.value, Mapping) and setting.value:
            inner = [
                replace(setting, key=f"{setting.key}.{name}", value=value, path=(*setting.path, str(name)))
                for name, value in setting.value.items()
            ]
            yield from flatten_mappings(inner)
        else:
            yield setting


def settings_of(recipe: Recipe) -> dict[str, Setting]:
    """Return the settings of the trainer by key: mappings flattened, an override in place of a section's value."""
    return last_settings(list(flatten_mappings(list_settings(recipe))))


def last_settings(given: list[Setting]) -> dict[str, Setting]:
    """Return the last setting of each key: an override replaces the value of a section."""
    result: dict[str, Setting] = {}
    for setting in given:
        result.pop(setting.key, None)
        result[setting.key] = setting
    return result


def keys_without_effect(recipe: Recipe) -> list[KeyPath]:
    """Return keys that are set but have no effect with the backend: `actor.parallel.tensor` of an fsdp recipe."""
    if recipe.has_own_keys:
        return []
    written = [leaf for leaf in _leaves(recipe, ()) if leaf.written and leaf.value != {}]
    return [leaf.path for leaf in written if not leaf.key.names(recipe.megatron)]


def _own_key_settings(recipe: Recipe, keys: OwnKeys) -> Iterator[Setting]:
    """Yield the settings of a trainer with its own keys, except those for the run's folder."""
    cluster = recipe.cluster
    words: tuple[tuple[Sequence[str] | None, Any, KeyPath], ...] = (
        (keys.steps, recipe.steps, ("steps",)),
        (keys.seed, recipe.seed, ("seed",)),
        (keys.cluster.nodes, cluster.nodes, ("cluster", "nodes")),
        (keys.cluster.dies, cluster.dies, ("cluster", "dies")),
        (keys.cluster.world, cluster.world, ("cluster", "dies")),
        (keys.checkpoint.every, recipe.checkpoint.every, ("checkpoint", "every")),
    )
    for targets, value, path in words:
        if value is not None:
            yield from (Setting(target, value, path) for target in targets or ())


def _section_settings(recipe: Recipe) -> Iterator[Setting]:
    for leaf in _leaves(recipe, ()):
        for target in leaf.key.names(recipe.megatron):
            if isinstance(leaf.value, Mapping):
                for name, item in leaf.value.items():
                    yield Setting(f"{target}.{name}", item, (*leaf.path, name))
            else:
                yield Setting(target, leaf.value + leaf.key.more if leaf.key.more else leaf.value, leaf.path)


class _Leaf(NamedTuple):
    path: KeyPath
    value: Any
    key: Key
    written: bool


def _leaves(model: BaseModel, path: KeyPath) -> Iterator[_Leaf]:
    """Yield each key of a recipe that has a value and is written to keys of the trainer."""
    for name, field in type(model).model_fields.items():
        value, here, key = getattr(model, name), (*path, field.alias or name), key_of(field)
        if isinstance(value, BaseModel):
            yield from _leaves(value, here)
        elif key is not None and value is not None:
            yield _Leaf(here, value, key, name in model.model_fields_set)
