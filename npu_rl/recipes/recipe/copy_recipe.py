"""Copying of a bundled recipe for editing: its text, and the schema that its first line names."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.disk import disk_errors, write_atomically
from npu_rl.common.errors import UsageError
from npu_rl.common.yaml_documents.document_kind import RECIPE, find_bundled

SCHEMA = "recipe.schema.json"


def copy_recipe(name: str, target: Path | None = None) -> tuple[Path, ...]:
    """Write a bundled recipe, byte for byte, to `target` (a file or an existing folder; default: here).

    Its first line points editors at recipe.schema.json beside it, so that is written too if there is none.
    Nothing is overwritten. Returns the files that were written. Raises RecipeError for an unknown name, UsageError for
    a target that is taken or isn't a .yaml file, HostError for an error of the disk.
    """
    source, schema = find_bundled(RECIPE, name), data_root() / "recipes" / SCHEMA
    with disk_errors(Path(name) if target is None else target):
        path = _place(target, source.name)
    beside = path.parent / SCHEMA
    with disk_errors(path):
        if os.path.lexists(path):
            raise UsageError(f"{path} already exists", hint="Name another file, or move that one away.")
        write_atomically(path, source.read_bytes())
        if os.path.lexists(beside):
            return (path,)
        write_atomically(beside, schema.read_bytes())
        return path, beside


def _place(target: Path | None, name: str) -> Path:
    path = Path(name) if target is None else target / name if target.is_dir() else target
    if path.suffix not in (".yaml", ".yml"):
        hint = f"Write {path}.yaml, or the path of a folder that exists."
        raise UsageError(f"{path} is not a valid name for a recipe: it does not end in .yaml", hint=hint)
    if not path.parent.is_dir():
        make = shlex.join(["mkdir", "-p", str(path.parent)])
        raise UsageError(f"No such folder: {path.parent}", hint=f"Create it: {make}")
    return path
