"""The `patches:` entries of a manifest and their files, compared with a workspace's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import ManifestError, WorkspaceError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.series import SERIES, read_patchset
from npu_rl.workspace.export.history_steps import TREE

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.manifest.schema import PatchEntry

_LARGEST_SERIES = 1 << 20
AGAIN = "Run npu-rl lock and npu-rl setup again before you export."


@dataclass(frozen=True)
class EntryFiles:
    """One entry of a component's `patches:`.

    Attributes:
        place: The file or folder; None for one in a component's tree.
        names: The patches of a folder in order; the file's own name for a single file.
        locked: The patches of the lock among them, by name of their file.
        is_inherited: Whether a parent of the manifest has the entry.
    """

    entry: PatchEntry
    place: Path | None
    is_folder: bool
    names: tuple[str, ...]
    locked: Mapping[str, LockedPatch]
    is_inherited: bool

    @property
    def is_own(self) -> bool:
        """Return whether the entry's files are beside the manifest, where they may be written."""
        return self.entry.from_ is None and is_local(self.entry.path)

    def path_of(self, name: str) -> Path:
        """Return the file of one of the entry's patches."""
        assert self.place is not None
        return self.place / name if self.is_folder else self.place


def check_same_stack(loaded: LoadedManifest, lock: Lock) -> None:
    """Raise WorkspaceError unless a manifest still describes a lock's stack, not counting patches."""
    specs = loaded.manifest.components
    differing = []
    if list(specs) != list(lock.components):
        differing.append(
            f"its components are {', '.join(specs)}; the workspace has {', '.join(lock.components)}"
        )
    for name, component in lock.components.items():
        if name not in specs:
            continue
        spec = specs[name]
        facts = {
            "ref": (spec.ref, component.ref),
            "merge": ([merge.ref for merge in spec.merge], [merge.ref for merge in component.merges]),
            "take": ([(t.from_, t.to) for t in spec.take], [(t.path, t.to) for t in component.take]),
        }
        differing += [f"`{key}:` of {name}" for key, (one, other) in facts.items() if one != other]
    if differing:
        raise WorkspaceError(
            f"{loaded.path.name} has changed since the workspace was set up",
            where=str(loaded.path),
            why="\n".join(differing),
            hint=AGAIN,
        )


def entries_of(loaded: LoadedManifest, lock: Lock, component: str) -> list[EntryFiles]:
    """Return the entries of a component, or of the assembled tree. Raises PatchError, ManifestError."""
    manifest = loaded.manifest
    path: tuple[str, ...] = ("tree", "patches")
    entries, locked = manifest.tree.patches, lock.tree_patches
    if component != TREE:
        path = ("components", component, "patches")
        entries, locked = manifest.components[component].patches, lock.components[component].patches
    left = list(locked)
    return [_entry_files(loaded, entry, (*path, index), left) for index, entry in enumerate(entries)]


def _entry_files(
    loaded: LoadedManifest, entry: PatchEntry, path: Sequence[str | int], left: list[LockedPatch]
) -> EntryFiles:
    """Return one entry, and remove its locked patches from the remaining ones."""
    inherited = loaded.is_inherited(*path)
    if entry.from_ is not None:
        file = f"{entry.from_}:{entry.path}"
        below = f"{entry.from_}:" if entry.path == "." else f"{file}/"
        found = {p.file: p for p in left if p.file == file or p.file.startswith(below)}
        for patch in found.values():
            left.remove(patch)
        return EntryFiles(entry, None, False, tuple(found), found, inherited)
    place = loaded.locate(entry.path)
    is_folder = place.is_dir()
    names = _names(place) if is_folder else (place.name,)
    is_removed = is_local(entry.path) and any(
        patch.file == entry.path for patch in left
    )  # by an earlier export
    if not is_folder and not place.is_file() and not is_removed:
        raise ManifestError(
            f"The patch {entry.path} does not exist",
            where=loaded.where(*path),
            hint="Correct the path, or remove it.",
        )
    locked: dict[str, LockedPatch] = {}
    for name in names:
        file = f"{entry.path.rstrip('/')}/{name}" if is_folder else entry.path
        own = next((p for p in left if p.file == file), None) or _copied(name, entry.path, left)
        if own is not None:
            locked[name] = own
            left.remove(own)
    return EntryFiles(entry, place, is_folder, names, locked, inherited)


def _copied(name: str, path: str, left: Sequence[LockedPatch]) -> LockedPatch | None:
    """Return the lock's bundled patch that an earlier export copied beside the manifest."""
    if not is_local(path):
        return None
    return next(
        (p for p in left if not is_local(p.file) and ":" not in p.file and p.file.endswith(f"/{name}")), None
    )


def _names(folder: Path) -> tuple[str, ...]:
    """Return the names in a `series`, even if a killed export left further files in the folder."""
    from npu_rl.stack.patches.series_file import names_of

    found = read_if_file(folder / SERIES, _LARGEST_SERIES)
    if found is None:
        return tuple(source.name for source in read_patchset(folder))  # raises: there is no series
    return names_of(found.decode("utf-8", "replace"))
