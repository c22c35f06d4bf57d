"""Files a recipe names beside itself, made relative to the recipe that extends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from npu_rl.manifest import checks
from npu_rl.manifest.local_paths import moved_path
from npu_rl.manifest.problems import KeyPath, Problem
from npu_rl.manifest.yaml_text import Document, Plain

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


def _visit_paths(data: dict[str, Plain], visit: _Visit) -> None:
    manifest = data.get("manifest")
    if isinstance(manifest, str) and _is_beside(manifest):
        data["manifest"] = visit(manifest, ("manifest",))
    for section, key in _TEXTS:
        holder = data.get(section)
        value = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(value, str) and checks.is_local(value):
            holder[key] = visit(value, (section, key))
    for section, key in _LISTS:
        holder = data.get(section)
        items = holder.get(key) if isinstance(holder, dict) else None
        for index, item in enumerate(items if isinstance(items, list) else []):
            if isinstance(items, list) and isinstance(item, str) and checks.is_local(item):
                items[index] = visit(item, (section, key, index))


def _is_beside(manifest: str) -> bool:
    """Whether a manifest is a path relative to the recipe, not a bundled name."""
    return checks.is_manifest_path(manifest) and not Path(manifest).is_absolute()
