"""Settings of a recipe that a rehearsal changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from npu_rl.recipes.recipe.schema import Recipe

_OF_THE_RECORD = ("name", "device")


def changed_settings(before: Recipe, after: Recipe) -> list[str]:
    """Return the settings that differ, as a line of text for each section of the recipe."""
    old, new = dict(_settings(before.model_dump())), dict(_settings(after.model_dump()))
    by_section: dict[str, list[str]] = {}
    for key in sorted(old.keys() | new.keys()):
        section, _, name = key.partition(".")
        if old.get(key) != new.get(key) and key not in _OF_THE_RECORD:
            change = f"{name} {_shown(new.get(key))} for {_shown(old.get(key))}".strip()
            by_section.setdefault(section, []).append(change)
    return [f"{section}: {'; '.join(changes)}" for section, changes in by_section.items()]


def _settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, default=str)
