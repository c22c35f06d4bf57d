"""The patches of a component in a lock, each with its files as the patches before it leave them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import LockError, PatchError, UsageError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.build_tree import compose
from npu_rl.stack.compose.git_trees import Trees, scratch_trees
from npu_rl.stack.compose.patch_texts import MAXIMUM_SIZE, locked_text
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text, header_of
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.stack.patches.series import SERIES
from npu_rl.stack.resolve.upstream_repository import Context

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest


@dataclass(frozen=True)
class OldPatch:
    """A patch of a lock.

    Attributes:
        name: The name of its file in a patchset.
        text: The text to apply.
        after: The component's tree after it.
    """

    name: str
    text: bytes
    after: str

    @property
    def message(self) -> str:
        """Its header as a commit message."""
        header = parse_patch(self.text, name=self.name).header
        return f"{parse_header(header).subject or self.name}\n\n{header.strip()}\n"


def check_lock(loaded: LoadedManifest, lock: Lock, component: str) -> None:
    """Raise UsageError, LockError or PatchError if a lock differs from a manifest and its patch files."""
    name = loaded.manifest.name
    again = f"Lock again, then port: npu-rl lock --manifest {shlex.quote(str(loaded.path))}"
    if component not in lock.components or component not in loaded.manifest.components:
        known = ", ".join(loaded.manifest.components)
        raise UsageError(f"Unknown component of {name}: {component}", hint=f"Name one of these: {known}")
    if loaded.digest != lock.manifest_digest:
        raise LockError(f"{name} has changed since its lock was made", where=str(loaded.path), hint=again)
    if not lock.components[component].patches:
        raise UsageError(f"{component} of {name} has no patches", where=str(loaded.path))
    for patch in lock.components[component].patches:
        if ":" in patch.file:
            continue
        found = read_if_file(_place(loaded, patch.file), MAXIMUM_SIZE)
        if found is None or hashlib.sha256(found).hexdigest() != patch.sha256:
            what = "was removed" if found is None else "was changed"
            raise PatchError(
                f"{patch.name} of {component} {what} after the lock was made",
                where=str(_place(loaded, patch.file)),
                why="The lock proves the patch as it was.",
                hint=again,
            )


def _place(loaded: LoadedManifest, file: str) -> Path:
    if is_local(file):
        return loaded.path.parent / file
    return loaded.locate(file.rpartition("/")[0]) / file.rpartition("/")[2]


@contextmanager
def old_patches(context: Context, lock: Lock, component: str) -> Iterator[tuple[Trees, list[OldPatch]]]:
    """Provide the patches of a component and the objects of their trees; missing objects are fetched.

    Raises SourceError, ComposeError, PatchError.
    """
    locked = lock.components[component]
    names = _names(locked.patches)
    # A patch may come from another component's files.
    origins = lock.components if any(":" in patch.file for patch in locked.patches) else {component: locked}
    part = replace(lock, components=origins, tree_patches=(), runtime=None)
    deliveries = context.deliverer().deliver(part, len(origins))
    units = [unit for delivery in deliveries.values() for unit in delivery.units]
    texts: dict[str, bytes] = {}
    with scratch_trees(context.store, units) as trees:

        def text_of(patch: LockedPatch, results: dict[str, str]) -> bytes:
            texts[patch.sha256] = locked_text(patch, context.manifest_folder, context.store, trees, results)
            return texts[patch.sha256]

        compose(trees, part, text_of)
        before = assemble.merged(locked)
        found = []
        for name, patch in zip(names, locked.patches, strict=True):
            text = _plain_text(trees, patch, texts[patch.sha256], before)
            found.append(OldPatch(name, text, patch.tree))
            before = patch.tree
        yield trees, found


def _plain_text(trees: Trees, patch: LockedPatch, data: bytes, before: str) -> bytes:
    """Return the text of a patch in the component's own paths and at its own lines, without options of an entry."""
    text = patch.applied_text(data)
    if (patch.strip, patch.directory, patch.exclude, patch.offsets) == (1, "", (), {}):
        return text
    return header_of(text) + b"---\n" + diff_text(trees, before, patch.tree, PatchOptions())


def _names(patches: Sequence[LockedPatch]) -> list[str]:
    """Return the names of the files in a new patchset. Raises PatchError for a duplicate name."""
    names = [PurePosixPath(patch.file.partition(":")[2] or patch.file).name for patch in patches]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PatchError(
            f"Two patches are named {twice}",
            why="A port writes all patches of a component into one folder.",
            hint="Rename one of them, lock again (npu-rl lock --manifest M), then port.",
        )
    return names


def series_of(loaded: LoadedManifest, component: str) -> str:
    """Return the text of the `series` files of a component's folders, one after the other."""
    text = ""
    for entry in loaded.manifest.components[component].patches:
        if entry.from_ is None and loaded.locate(entry.path).is_dir():
            data = read_if_file(loaded.locate(entry.path) / SERIES, MAXIMUM_SIZE) or b""
            text += data.decode("utf-8", "replace")
            text += "" if text.endswith("\n") or not text else "\n"
        elif entry.from_ is None:
            text += f"{PurePosixPath(entry.path).name}\n"
    return text
