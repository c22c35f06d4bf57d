"""Texts of locked patches, from the manifest's folder, bundled patchsets, a component's files, or the store."""

from __future__ import annotations

import hashlib
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.bundled import data_root
from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.store import Store

MAXIMUM_SIZE = 16 * 1024 * 1024


def locked_text(
    patch: LockedPatch, manifest_folder: Path, store: Store, trees: Trees, results: dict[str, str]
) -> bytes:
    """Return the locked bytes of a patch, checked by hash.

    A file may have changed since the lock was made, as long as the store has the locked bytes.

    Args:
        manifest_folder: The folder that "./..." and "../..." are relative to.
        results: Component trees, for "COMPONENT:path".

    Raises:
        PatchError: If they are found nowhere.
    """
    kept = store.kept_file(patch.sha256)
    if kept is not None:
        return kept
    found = _read(patch.file, manifest_folder, trees, results)
    if found is not None and hashlib.sha256(found).hexdigest() == patch.sha256:
        store.keep_file(found)
        return found
    raise PatchError(
        f"The locked text of {patch.name} is not available",
        where=patch.file,
        why="The file does not exist." if found is None else "The file was changed after the lock was made.",
        hint="Restore the file, or make a new lock: npu-rl lock --manifest M",
    )


def _read(file: str, manifest_folder: Path, trees: Trees, results: dict[str, str]) -> bytes | None:
    component, separator, path = file.partition(":")
    if separator and component in results:
        entry = trees.find(results[component], path)
        return trees.blob(entry.oid) if entry is not None and not entry.is_tree else None
    place = manifest_folder / file if is_local(file) else data_root() / "patchsets" / file
    return read_if_file(place, MAXIMUM_SIZE)
