"""Paths in a recipe: rebased onto the recipe that extends it, and resolved to files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.user_path import user_path
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.problems import KeyPath, Problem
from npu_rl.stack.manifest.manifest_paths import moved_path

_PathEdit = Callable[[str, KeyPath], str]
_MODEL, _DATA = (("model", "path"), ("model", "checkpoint")), (("data", "train"), ("data", "test"))
_PATHS = (("manifest",), *_MODEL, *_DATA, ("reward", "function"))

OUTSIDE = "a bundled recipe can't name files beside it"


def own_path_keys(documents: Iterable[Mapping[str, Plain]]) -> frozenset[str]:
    """Return the trainer's keys listed in `trainer.paths` of any of the files."""
    found: set[str] = set()
    for data in documents:
        trainer = data.get("trainer")
        paths = trainer.get("paths") if isinstance(trainer, dict) else None
        found.update(key for key in (paths if isinstance(paths, list) else []) if isinstance(key, str))
    return frozenset(found)


def rebase(
    document: Document, folder: Path | None, onto: Path, own: Collection[str] = frozenset()
) -> list[Problem]:
    """Make every path that begins with ./ or ../ relative to `onto`, in place.

    Args:
        own: Keys of the trainer that hold paths under `overrides`.
        folder: Folder of the document; None for a bundled recipe, which may not name files beside it.
        onto: The folder of the recipe that is loaded.

    Returns:
        The problems that were found.
    """
    problems: list[Problem] = []

    def rebased(value: str, path: KeyPath) -> str:
        if folder is None:
            problems.append(Problem(document.name, document.lines[path], path, OUTSIDE))
            return value
        return moved_path(value, folder, onto)

    _replace_paths(document.data, rebased, own)
    return problems


def make_absolute(document: Document, own: Collection[str] = frozenset()) -> None:
    """Make every path of a command line's value that begins with ./ or ../ absolute, in place.

    The current folder is looked up only if there is such a path: it may have been removed.

    Args:
        own: Keys of the trainer that hold paths under `overrides`.
    """

    def rebased(value: str, _: KeyPath) -> str:
        return os.path.normpath(Path.cwd() / value)

    _replace_paths(document.data, rebased, own)


def split_function(function: str) -> tuple[str, str]:
    """Split FILE.py:NAME; NAME is compute_score if it is left out."""
    file, colon, name = function.rpartition(":")
    return (file, name) if colon else (name, "compute_score")


def function_file(file: str, code: Path, recipe: Path) -> Path:
    """Return the file of a function: relative to the code folder unless it begins with ./, ../, ~ or /."""
    return Path(absolute(file, recipe)) if is_outside(file) else code / file


def is_outside(path: str) -> bool:
    """Return whether a path names a file of this machine: not one of the code folder, nor a name on a hub."""
    return path.startswith(("./", "../", "/", "~"))


def absolute(path: str, base: Path) -> str:
    """Resolve ./x and ../x from `base`, ~/x from home; keep all others (/x, hdfs://x, a name on a hub)."""
    if path.startswith(("./", "../")):
        return os.path.normpath(base / path)
    return str(user_path(path)) if path.startswith("~") else path


def _replace_paths(data: dict[str, Plain], edit: _PathEdit, own: Collection[str]) -> None:
    for path in (*_PATHS, *(("overrides", name) for name in own)):
        holder: Any = data if len(path) == 1 else data.get(path[0])
        value: Any = holder.get(path[-1]) if isinstance(holder, dict) else None
        is_path = _is_relative_manifest if path == ("manifest",) else text_checks.is_local
        if isinstance(value, str) and is_path(value):
            holder[path[-1]] = edit(value, path)
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, str) and is_path(item):
                value[index] = edit(item, (*path, index))


def _is_relative_manifest(manifest: str) -> bool:
    """Return whether a manifest is a path relative to the recipe, not a bundled name."""
    return text_checks.is_manifest_path(manifest) and not Path(manifest).is_absolute()
