"""Runs of a trainer with its own keys: paths, resuming, and the keys that only npu-rl sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_rl.recipes.recipe.recipe_paths import absolute
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import Setting


def run_settings(
    recipe: Recipe, given: Sequence[Setting], checkpoints: Path, folder: Path, resume: bool
) -> list[Setting]:
    """Return the settings of one attempt: the recipe's, with absolute paths, followed by npu-rl's.

    Args:
        given: The recipe's settings.
        checkpoints: Folder of the run's checkpoints.
        folder: Folder of the recipe, for paths that begin with ./.
        resume: Whether to continue from the newest checkpoint.
    """
    paths = set(recipe.trainer.paths)
    settings = [
        replace(one, value=absolute_paths(one.value, folder)) if one.key in paths else one for one in given
    ]
    assert recipe.trainer.keys is not None
    keys = recipe.trainer.keys.checkpoint
    settings += [Setting(key, str(checkpoints)) for key in keys.folder or ()]
    if resume:
        settings += [Setting(key, str(checkpoints)) for key in keys.load or ()]
        settings += [
            Setting(key, value, ("trainer", "resume", key)) for key, value in recipe.trainer.resume.items()
        ]
    return settings


def absolute_paths(value: Any, folder: Path) -> Any:
    """Resolve ./ from `folder` in a path or a list of paths; other values are returned unchanged."""
    if isinstance(value, list):
        return [absolute_paths(item, folder) for item in value]
    return absolute(value, folder) if isinstance(value, str) else value


def can_resume(recipe: Recipe) -> bool:
    """Return whether a run can resume, which needs keys for where checkpoints are written and loaded."""
    keys = recipe.trainer.keys
    return keys is None or bool(keys.checkpoint.folder and keys.checkpoint.load)
