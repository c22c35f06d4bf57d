"""The folder beside the manifest that has a component's patches, and the list of patches that names it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.assemble import code_paths
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_names import number_of_file, slug_of_file
from npu_rl.stack.patches.series import SERIES, read_series
from npu_rl.stack.patches.series_file import with_names
from npu_rl.stack.patches.written_files import LARGEST
from npu_rl.workspace.export.history_steps import TREE
from npu_rl.workspace.export.patch_writer import stays
from npu_rl.workspace.export.series_of_component import SeriesPatch

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.manifest.schema import PatchEntry


@dataclass
class PatchFolder:
    """A component's patches, as an export writes them.

    Attributes:
        path: The folder, relative to the manifest's.
        patches: Those that it has, by the names of their files, in order.
        options: How the manifest has each applied.
        is_listed: Whether the manifest names the folder.
        dropped: The lock's patches whose commits are gone.
        entries: The component's list in the manifest with this folder; None if it is there as it has to be.
    """

    component: str
    path: str
    patches: dict[str, SeriesPatch] = field(default_factory=dict)
    options: dict[str, PatchOptions] = field(default_factory=dict)
    is_listed: bool = False
    dropped: tuple[LockedPatch, ...] = ()
    entries: Any = None


def patch_folder(
    trees: Trees,
    loaded: LoadedManifest,
    lock: Lock,
    texts: Mapping[str, bytes],
    name: str,
    series: list[SeriesPatch],
) -> PatchFolder:
    """Return the folder of a component.

    Entries of the manifest whose patches stay, in order, stay; the folder has all patches after them.

    Args:
        texts: The files of the lock's patches by SHA-256.

    Raises PatchError for an entry that can't be replaced.
    """
    manifest = loaded.manifest
    at = ("tree", "patches") if name == TREE else ("components", name, "patches")
    entries = manifest.tree.patches if name == TREE else manifest.components[name].patches
    inherited = sum(loaded.is_inherited(*at, index) for index in range(len(entries)))
    locked = lock.tree_patches if name == TREE else lock.components[name].patches
    path, of_child = f"./patches/{name}", f"./patches/{name}-{manifest.name}"
    if of_child in map(_folder_of, entries) or path in map(_folder_of, entries[:inherited]):
        path = of_child  # the other one is the parent's
    folder = PatchFolder(name, path)
    options = PatchOptions()
    kept: list[PatchEntry | str] = []
    count = 0  # of the patches in entries that stay
    is_kept = True
    for entry in entries:
        own = [patch for patch in locked if _is_of(patch, entry)]
        is_folder = _folder_of(entry) == path
        if is_folder or not own:  # the latter is new since the lock, or an empty series
            kept.append(entry)
        elif (
            is_kept and [p.locked for p in series[count : count + len(own)] if stays(trees, p, texts)] == own
        ):
            count += len(own)
            kept.append(entry)
            continue
        elif entry.replaces is not None:
            raise PatchError(
                f"{entry.path} replaces a patch of a component, and can't move to {path}",
                where=loaded.where(*at),
                hint=f"Make the changes in commits after `Apply {own[-1].name} to {name}`.",
            )
        if is_folder:
            folder.is_listed, options = True, PatchOptions(entry.strip, entry.directory)
        is_kept = is_kept and not is_folder and not own
    if series[count:] and not folder.is_listed:
        kept.append(path)
    in_history = {patch.locked.name for patch in series if patch.locked is not None}
    folder.dropped = tuple(patch for patch in locked if patch.name not in in_history)
    last = max(
        (number_of_file(PurePosixPath(p.locked.file).name) for p in series[:count] if p.locked), default=0
    )
    for patch in series[count:]:
        file, new = "" if patch.locked is None else patch.locked.file, options
        old = file.removeprefix(f"{path}/")
        number = number_of_file(PurePosixPath(file).name)
        if (
            patch.locked and old != file and not 0 < number <= last
        ):  # it keeps its name, and its line in `series`
            new = PatchOptions(patch.locked.strip, patch.locked.directory)
        else:
            number = max(number, last + 1)
            old = f"{number:04d}-{slug_of_file(file) if file else patch.slug}.patch"
        last = max(number, last)
        folder.patches[old], folder.options[old] = patch, new
    if kept != list(entries):
        folder.entries = _as_written(kept, list(entries[:inherited]))
    return folder


def _folder_of(entry: PatchEntry) -> str:
    return entry.path.rstrip("/") if entry.from_ is None else ""


def _is_of(patch: LockedPatch, entry: PatchEntry) -> bool:
    """Return whether a patch of the lock comes from an entry of the manifest."""
    if entry.from_ is not None and entry.path == ".":
        return patch.file.startswith(f"{entry.from_}:")
    file = _folder_of(entry) or f"{entry.from_}:{entry.path}"
    return patch.file == file or patch.file.startswith(f"{file}/")


def _as_written(entries: list[PatchEntry | str], inherited: list[PatchEntry]) -> Any:
    """Return a list of patches as a manifest has it, added to its parent's where that stays whole."""
    if inherited and entries[: len(inherited)] == inherited:
        return {"append": _as_written(entries[len(inherited) :], [])}
    plain = [
        entry if isinstance(entry, str) else entry.model_dump(by_alias=True, exclude_defaults=True)
        for entry in entries
    ]
    return [one["path"] if isinstance(one, dict) and list(one) == ["path"] else one for one in plain]


def manifest_lines(folders: Iterable[PatchFolder]) -> str:
    """Return the lines that a manifest needs to name the folders; empty if it has them."""
    import yaml

    components: dict[str, Any] = {}
    lines: dict[str, Any] = {}
    for folder in folders:
        if folder.entries is not None:
            (lines if folder.component == TREE else components)[folder.component] = {
                "patches": folder.entries
            }
    whole = {"components": components, **lines} if components else lines
    return yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=1000) if whole else ""


def check_droppable(folder: PatchFolder, lock: Lock) -> None:
    """Raise PatchError for a dropped patch with files outside `code`, which would be lost if it was squashed."""
    component = lock.components.get(folder.component)
    for patch in folder.dropped if component is not None else ():
        elsewhere = [path for path in patch.files if component and not code_paths(component, path)]
        if elsewhere:
            raise PatchError(
                f"The history of code lacks the patch {patch.name}",
                why=f"Its commit was dropped, or squashed into another. It also changes {elsewhere[0]}, which code "
                "does not have.",
                hint="To remove the patch, take it out of the manifest, and run npu-rl lock and npu-rl setup.\n"
                "To keep it, go back with git reflog.",
            )


def planned_files(
    place: Path, texts: Mapping[str, bytes], known: Collection[str]
) -> dict[Path, bytes | None]:
    """Return the files of a folder: the texts of its patches and `series`, and None for files to remove.

    Args:
        known: The SHA-256 of files that are the lock's or an earlier export's, and may be replaced.

    Raises:
        PatchError: For any other file, with its name.
    """
    found = read_if_file(place / SERIES, LARGEST)
    lines = read_series(found or b"", str(place / SERIES))
    listed = {line.name for line in lines}
    files: dict[Path, bytes | None] = {}
    for name in sorted({*listed, *texts, *(path.name for path in place.glob("*.patch"))}):
        data = read_if_file(place / name, LARGEST)
        if not (data is None or data == texts.get(name) or digest(data) in known):
            raise PatchError(
                f"{name} is neither the lock's nor an earlier export's",
                where=str(place / name),
                why="It was changed by hand, or is a patch that this workspace does not have.",
                hint="Make the change in its commit and remove the file, or run npu-rl lock and npu-rl setup first.",
            )
        if data is not None or name in texts:
            files[place / name] = texts.get(name)
    if found is not None or texts:
        files[place / SERIES] = with_names((found or b"").decode(), list(texts)).encode()
    return files


def digest(data: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()
