"""`manifests check`: a manifest's environment, as far as that needs no tree, and the bounds on its versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npu_rl.recipes.environment.environment_check import environment_faults
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import LoadedManifest
from npu_rl.stack.requirements.bound_check import compare_bounds


@dataclass(frozen=True)
class CheckedManifest:
    """The result of `manifests check`. `bounds` counts the compared ones; None without a lock."""

    manifest: str
    path: Path
    errors: list[str]
    notes: list[str]
    bounds: int | None = None

    @property
    def ok(self) -> bool:
        """Return whether there is no error."""
        return not self.errors


def check_manifest(loaded: LoadedManifest) -> CheckedManifest:
    """Check a manifest's variables, and its versions against the bounds in the lock beside it."""
    notes, errors = notes_and_errors(loaded)
    path = lock_model.lock_path(loaded.path)
    if not path.exists():
        notes.append(f"{path.name} does not exist, so nothing was compared with what the components require")
        return CheckedManifest(loaded.manifest.name, loaded.path, errors, notes)
    found = compare_bounds(loaded, lock_model.read(path))
    errors, notes = [*errors, *found.errors], [*notes, *found.notes]
    return CheckedManifest(loaded.manifest.name, loaded.path, errors, notes, found.compared)


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
