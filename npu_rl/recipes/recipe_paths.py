"""Files a recipe names: those beside itself relative to the recipe that extends it, and where each of them is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from npu_rl.config import text_checks
from npu_rl.config.document import Document, Plain
from npu_rl.config.problems import KeyPath, Problem
from npu_rl.manifest.manifest_paths import moved_path
from npu_rl.user_path import user_path

_Visit = Callable[[str, KeyPath], str]
_TEXTS = (("model", "path"), ("model", "checkpoint"), ("reward", "function"))
_LISTS = (("data", "train"), ("data", "test"))

OUTSIDE = "a bundled recipe can't name files beside it"


def rebase(document: Document, folder: Path | None, onto: Path) -> list[Problem]:
    """Make every path that begins with ./ or ../ relative to `onto`, in place.

    folder: where the document lies; None for a bundled recipe, which may not name files of its own.
    onto: the folder of the recipe that is loaded. Returns the problems found.
    """
    problems: list[Problem] = []

    def moved(value: str, path: KeyPath) -> str:
        if folder is None:
            problems.append(Problem(document.name, document.lines[path], path, OUTSIDE))
            return value
        return moved_path(value, folder, onto)

    _visit_paths(document.data, moved)
    return problems


def make_absolute(document: Document) -> None:
    """Make every path that begins with ./ or ../ absolute, in place: those given on a command line.

    The current folder is asked for only if there is one: it may have been removed.
    """

    def moved(value: str, _: KeyPath) -> str:
        return os.path.normpath(Path.cwd() / value)

    _visit_paths(document.data, moved)


def split_function(function: str) -> tuple[str, str]:
    """FILE.py:NAME as its two parts; NAME is compute_score if it is left out."""
    file, colon, name = function.rpartition(":")
    return (file, name) if colon else (name, "compute_score")


def function_file(file: str, code: Path, recipe: Path) -> Path:
    """The file of a function: in the code folder, unless it is named from the recipe's folder, from home or from /."""
    return Path(absolute(file, recipe)) if is_outside(file) else code / file


def is_outside(path: str) -> bool:
    """Whether a path names a file of this machine: not one of the code folder, nor a name on a hub."""
    return path.startswith(("./", "../", "/", "~"))


def absolute(path: str, base: Path) -> str:
    """./x and ../x from `base`, ~/x from home; anything else (/x, hdfs://x, a name on a hub) as it is."""
    if path.startswith(("./", "../")):
        return os.path.normpath(base / path)
    return str(user_path(path)) if path.startswith("~") else path


def _visit_paths(data: dict[str, Plain], visit: _Visit) -> None:
    manifest = data.get("manifest")
    if isinstance(manifest, str) and _is_beside(manifest):
        data["manifest"] = visit(manifest, ("manifest",))
    for section, key in _TEXTS:
        holder = data.get(section)
        value = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(value, str) and text_checks.is_local(value):
            holder[key] = visit(value, (section, key))
    for section, key in _LISTS:
        holder = data.get(section)
        items = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(items, str) and text_checks.is_local(items):
            holder[key] = visit(items, (section, key))
        for index, item in enumerate(items if isinstance(items, list) else []):
            if isinstance(items, list) and isinstance(item, str) and text_checks.is_local(item):
                items[index] = visit(item, (section, key, index))


def _is_beside(manifest: str) -> bool:
    """Whether a manifest is a path relative to the recipe, not a bundled name."""
    return text_checks.is_manifest_path(manifest) and not Path(manifest).is_absolute()
