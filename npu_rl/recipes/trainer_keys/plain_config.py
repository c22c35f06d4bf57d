"""The configuration of a trainer without Hydra: its YAML files, overridden by the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import config_location
from npu_rl.recipes.trainer_code.compose_config import compose_config


def plain_config(recipe: Recipe, code: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `trainer.config`, overridden by the settings (dotted keys).

    Raises:
        ConfigFault: If the file is missing or invalid.
    """
    tree = compose_config(code, config_location(recipe))
    config: dict[str, Any] = {}
    for key, entry in tree.entries.items():
        _put(config, key, {} if entry.section else entry.value)
    for key, value in settings.items():
        _put(config, key, value)
    return config


def config_text(config: Mapping[str, Any]) -> str:
    """Return a configuration as YAML."""
    import yaml

    text: str = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return text


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for name in sections:
        child = config.get(name)
        if not isinstance(child, dict):
            child = config[name] = {}
        config = child
    config[last] = value
