"""Paths of a manifest's own files, rewritten relative to the manifest that extends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.layers import APPEND
from npu_rl.common.yaml_documents.problems import KeyPath, Problem


def rebase(document: Document, folder: Path | None, onto: Path) -> list[Problem]:
    """Make every local patch's path in the document relative to `onto`, in place.

    Invalid paths are left for the schema to reject. Returns the problems found.

    Args:
        folder: The document's folder; None for a bundled manifest, which must not use files of its own.
        onto: The folder of the manifest that is loaded.
    """
    problems: list[Problem] = []
    message = "a bundled manifest can't use files beside it: name a bundled patchset (component/version)"
    for holder, key, path in _local_paths(document.data):
        if folder is None:
            problems.append(Problem(document.name, document.lines[path], path, message))
        else:
            holder[key] = moved_path(holder[key], folder, onto)
    return problems


def moved_path(value: str, folder: Path, onto: Path) -> str:
    """Return a path relative to `onto` (beginning with ./ or ../) for one relative to `folder`."""
    relative = Path(os.path.relpath(folder / value, onto)).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def _local_paths(data: dict[str, Plain]) -> Iterator[tuple[Any, str | int, KeyPath]]:
    """Yield the holder, key and key path of each local patch whose path is valid."""
    yield from _local_patches(data.get("tree"), ("tree",))
    components = data.get("components")
    for name, component in components.items() if isinstance(components, dict) else ():
        yield from _local_patches(component, ("components", name))


def _local_patches(holder: Plain, path: KeyPath) -> Iterator[tuple[Any, str | int, KeyPath]]:
    patches, at = _list_of(holder, (*path, "patches"))
    for index, entry in enumerate(patches):
        if isinstance(entry, dict) and "from" not in entry and _is_local_patch(entry.get("path")):
            yield entry, "path", (*at, index, "path")
        elif _is_local_patch(entry):
            yield patches, index, (*at, index)


def _list_of(holder: Plain, path: KeyPath) -> tuple[list[Plain], KeyPath]:
    """Return a list of a mapping, or the items it appends to the parent's, and the key path of that list."""
    value = holder.get(str(path[-1])) if isinstance(holder, dict) else None
    if isinstance(value, dict) and list(value) == [APPEND]:
        path, value = (*path, APPEND), value[APPEND]
    return (value if isinstance(value, list) else []), path


def _is_local_patch(value: Plain) -> bool:
    try:
        return isinstance(value, str) and text_checks.is_local(text_checks.check_local_path(value))
    except ValueError:
        return False
