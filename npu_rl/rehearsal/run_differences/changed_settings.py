"""Settings of a recipe that a rehearsal changes, beyond the sizes that it describes in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from npu_rl.recipes.recipe.schema import Recipe

_IN_WORDS = frozenset(
    {
        *("name", "device", "steps", "cluster.nodes", "cluster.dies", "env.VLLM_DP_SIZE"),
        *("reward.function", "reward.arguments"),
        *("model.path", "model.make", "model.architecture", "model.checkpoint"),
        *("data.make", "data.rows", "data.train", "data.test", "data.batch"),
        *("data.prompt_length", "data.response_length", "rollout.responses", "optimizer.lr"),
    }
)
"""Keys, and mappings, that the description of what was scaled down is about."""


def other_changes(before: Recipe, after: Recipe, told: Iterable[str]) -> list[str]:
    """Return the other settings that differ, as a line of text for each section of the recipe.

    Args:
        told: Lines about changes; an override that begins one is left out.
    """
    overrides = {f"overrides.{line.partition(': ')[0]}" for line in told}
    old, new = dict(_settings(before.model_dump())), dict(_settings(after.model_dump()))
    by_section: dict[str, list[str]] = {}
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key) or _in_words(key) or key in overrides:
            continue
        section, _, name = key.partition(".")
        change = f"{name} {_shown(new.get(key))} for {_shown(old.get(key))}"
        by_section.setdefault(section, []).append(change)
    return [f"{section}: {'; '.join(changes)}" for section, changes in by_section.items()]


def _settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _in_words(key: str) -> bool:
    return any(key == word or key.startswith(f"{word}.") for word in _IN_WORDS)


def _shown(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, default=str)
