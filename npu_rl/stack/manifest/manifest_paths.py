"""Paths of a manifest's own files, rewritten relative to the manifest that extends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.layers import APPEND
from npu_rl.common.yaml_documents.problems import KeyPath, Problem

_Visit = Callable[[str, KeyPath], str]


def rebase(document: Document, folder: Path | None, onto: Path) -> list[Problem]:
    """Make every local patch and bundle path in the document relative to `onto`, in place.

    Invalid paths are left for the schema to reject. Returns the problems found.

    Args:
        folder: The document's folder; None for a bundled manifest, which must not use files of its own.
        onto: The folder of the manifest that is loaded.
    """
    problems: list[Problem] = []

    def moved(value: str, path: KeyPath) -> str:
        if folder is None:
            message = (
                "a bundled manifest can't use files beside it: name a bundled patchset (component/version)"
            )
            problems.append(Problem(document.name, document.lines[path], path, message))
            return value
        return moved_path(value, folder, onto)

    _visit_manifest(document.data, moved)
    return problems


def moved_path(value: str, folder: Path, onto: Path) -> str:
    """Return a path relative to `onto` (beginning with ./ or ../) for one relative to `folder`."""
    relative = Path(os.path.relpath(folder / value, onto)).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def _visit_manifest(data: dict[str, Plain], visit: _Visit) -> None:
    _visit_patches(data.get("tree"), ("tree",), visit)
    components = data.get("components")
    if isinstance(components, dict):
        for name, component in components.items():
            _visit_patches(component, ("components", name), visit)
            _visit_bundles(component, ("components", name), visit)


def _visit_patches(holder: Plain, path: KeyPath, visit: _Visit) -> None:
    patches, at = _list_of(holder, (*path, "patches"))
    for index, entry in enumerate(patches):
        place = (*at, index)
        if isinstance(entry, str):
            if _is_local_patch(entry):
                patches[index] = visit(entry, place)
        elif isinstance(entry, dict) and "from" not in entry:
            patch_path = entry.get("path")
            if isinstance(patch_path, str) and _is_local_patch(patch_path):
                entry["path"] = visit(patch_path, (*place, "path"))


def _visit_bundles(component: Plain, path: KeyPath, visit: _Visit) -> None:
    sources, at = _list_of(component, (*path, "sources"))
    for index, source in enumerate(sources):
        bundle = source.get("bundle") if isinstance(source, dict) else None
        if (
            isinstance(source, dict)
            and isinstance(bundle, str)
            and _passes(text_checks.check_bundle_path, bundle)
        ):
            source["bundle"] = visit(bundle, (*at, index, "bundle"))


def _list_of(holder: Plain, path: KeyPath) -> tuple[list[Plain], KeyPath]:
    """Return a list of a mapping, or the items it appends to the parent's, and the key path of that list."""
    value = holder.get(str(path[-1])) if isinstance(holder, dict) else None
    if isinstance(value, dict) and list(value) == [APPEND]:
        path, value = (*path, APPEND), value[APPEND]
    return (value if isinstance(value, list) else []), path


def _is_local_patch(value: str) -> bool:
    return text_checks.is_local(value) and _passes(text_checks.check_local_path, value)


def _passes(check: Callable[[str], str], value: str) -> bool:
    try:
        check(value)
    except ValueError:
        return False
    return True
