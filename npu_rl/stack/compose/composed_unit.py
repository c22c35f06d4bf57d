"""The composed objects of a lock as a unit of the store, made once per lock, and the texts of its patches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import read_if_file
from npu_rl.common.bundled import data_root
from npu_rl.common.errors import ComposeError, PatchError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.store import Store, Unit, pack_loose, unit_key

if TYPE_CHECKING:
    from npu_rl.stack.compose.build_tree import Composition
    from npu_rl.stack.compose.git_trees import Trees

COMPOSE_FORMAT = 2
LARGEST_PATCH = 16 * 1024 * 1024  # bytes


@dataclass(frozen=True)
class ComposedUnit:
    """The composed unit, its tree and commit, and the facts that `composed` describes."""

    unit: Unit
    tree: str
    commit: str
    facts: Mapping[str, Any]


def composed(
    store: Store,
    lock: Lock,
    units: list[Unit],
    manifest_folder: Path,
    valid: Callable[[Mapping[str, Any]], bool] = bool,
) -> ComposedUnit:
    """Return the composed objects of a lock, from the store or composed now.

    facts: `files` (root, e.g. "code" or "src/NAME" → list of [path, mode, id]), `src` (component → commit),
    `hunks` (records for verify), `texts` (patch SHA-256 → text).
    Raises ComposeError, PatchError.

    Args:
        valid: Whether facts are those of a unit that npu-rl has made; others are composed again.
    """
    key = unit_key("composed", [lock.content_id(), str(COMPOSE_FORMAT)])
    unit = store.find(key)
    if unit is not None and not valid(unit.facts()):
        store.discard(unit)
        unit = None
    unit = unit or _make(store, lock, units, manifest_folder, key)
    facts = unit.facts()
    return ComposedUnit(unit, facts["tree"], facts["commit"], facts)


def _make(store: Store, lock: Lock, units: list[Unit], manifest_folder: Path, key: str) -> Unit:
    # A setup from a warm store does not need these.
    from npu_rl.stack.compose.build_tree import compose, list_files
    from npu_rl.stack.compose.git_trees import scratch_trees

    runtime = runtime_unit(store, lock)
    with scratch_trees(store, [*units, *([runtime] if runtime else [])]) as trees:
        composition = compose(
            trees, lock, lambda patch, done: locked_text(patch, manifest_folder, store, trees, done)
        )
        _check(composition, lock)
        files = list_files(trees, lock, composition)
        pack_loose(trees.repository)
        facts = {
            "tree": composition.tree,
            "commit": composition.commit,
            "src": composition.src,
            "hunks": composition.hunks,
            "texts": {
                sha: data.decode("utf-8", "surrogateescape") for sha, data in composition.texts.items()
            },
            "files": files,
        }
        return store.publish(trees.repository.git_dir, key, facts)


def _check(composition: Composition, lock: Lock) -> None:
    if (composition.tree, composition.commit) != (lock.tree, lock.commit):
        raise ComposeError(
            "The composed tree does not match the lock",
            why=f"Locked {lock.tree} (commit {lock.commit}), found {composition.tree} (commit {composition.commit}).",
            hint="Please report this as a bug, with your git version.",
        )


def runtime_key(tree: str) -> str:
    """Return the store key of a version of the runtime."""
    return unit_key("runtime", [tree])


def runtime_unit(store: Store, lock: Lock) -> Unit | None:
    """Return the unit of the locked runtime; the store keeps every version, so an old lock works after an upgrade."""
    if lock.runtime is None:
        return None
    key = runtime_key(lock.runtime)
    unit = store.find(key)
    if unit is not None:
        return unit
    from npu_rl.stack.compose.assemble import write_runtime
    from npu_rl.stack.compose.git_trees import scratch_trees

    with scratch_trees(store) as trees:
        if write_runtime(trees) != lock.runtime:
            return None
        pack_loose(trees.repository)
        return store.publish(trees.repository.git_dir, key, {"runtime": lock.runtime})


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
    found = _patch_file(patch.file, manifest_folder, trees, results)
    if found is not None and hashlib.sha256(found).hexdigest() == patch.sha256:
        store.keep_file(found)
        return found
    raise PatchError(
        f"The locked text of {patch.name} is not available",
        where=patch.file,
        why="The file does not exist." if found is None else "The file was changed after the lock was made.",
        hint="Restore the file, or make a new lock: npu-rl lock --manifest M",
    )


def _patch_file(file: str, manifest_folder: Path, trees: Trees, results: dict[str, str]) -> bytes | None:
    component, separator, path = file.partition(":")
    if separator and component in results:
        entry = trees.find(results[component], path)
        return trees.blob(entry.oid) if entry is not None and not entry.is_tree else None
    place = manifest_folder / file if is_local(file) else data_root() / "patchsets" / file
    return read_if_file(place, LARGEST_PATCH)
