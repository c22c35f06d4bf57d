"""Checks of the environment that a manifest sets, as far as they need no tree."""

from __future__ import annotations

from npu_rl.recipes.environment.environment_check import environment_faults
from npu_rl.stack.manifest.load_manifest import LoadedManifest


def notes_and_errors(loaded: LoadedManifest) -> tuple[list[str], list[str]]:
    """Return lines on variables that are likely typos, and on variables that no run may have.

    Variables that only the tree's code reads are checked with a recipe, once there is a tree.
    """
    notes: list[str] = []
    errors: list[str] = []
    for one in environment_faults(loaded.manifest.env, None):
        line = f"{loaded.where('env', one.name)}: env.{one.name}: {one.message}; fix: {one.fix}"
        (errors if one.certain else notes).append(line)
    return notes, errors
