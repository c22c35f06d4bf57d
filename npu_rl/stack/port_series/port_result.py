"""The new patchset of a port: its texts, the proof that they produce the ported tree, and its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.bundled import data_root, is_checkout
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text, header_of, tree_after
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.series import SERIES
from npu_rl.stack.patches.series_file import with_names
from npu_rl.stack.patches.written_files import LARGEST, differing, write_files
from npu_rl.stack.port_series.port_state import PortedPatchState, PortState
from npu_rl.stack.port_series.port_work_tree import tree_of

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{12}")  # of common/disk.py


def patchset_texts(trees: Trees, state: PortState) -> dict[str, bytes]:
    """Return the files of the new patchset by name, with its `series`; none if no patch is left.

    A patch that fits as it is, blob ids included, keeps its bytes. Every other text is git's diff under its old header.

    Raises:
        PatchError: If the patches, applied one by one to the new version, would not produce the ported tree.
    """
    texts: dict[str, bytes] = {}
    at, tree = state.base, state.tree
    for patch in state.patches:
        if patch.commit is None:
            continue
        before, after = tree_of(trees, at), tree_of(trees, patch.commit)
        texts[patch.name] = text = ported_text(trees, state.component, patch, before, after)
        tree = _proven(trees, state.component, patch.name, tree, text, after)
        at = patch.commit
    if texts:
        texts[SERIES] = with_names(state.series, list(texts)).encode("utf-8", "surrogateescape")
    return texts


def ported_text(trees: Trees, component: str, patch: PortedPatchState, before: str, after: str) -> bytes:
    """Return the text of a ported patch. Raises PatchError for a change that no patch can hold, such as a link."""
    old = trees.blob(patch.text)
    if _fits(trees, component, before, after, patch.name, old):
        return old
    text = header_of(old) + b"---\n" + diff_text(trees, before, after, PatchOptions())
    _proven(trees, component, patch.name, before, text, after)
    return text


def _proven(trees: Trees, component: str, name: str, before: str, text: bytes, after: str) -> str:
    """Return the tree after a patch's text, which must be the ported tree. Raises PatchError."""
    tree = tree_after(trees, before, text, name, component, PatchOptions())
    if tree != after:
        raise PatchError(
            f"{name} would not give the ported tree",
            why="It gives another tree when it is applied.",
            hint="Nothing was written. Please report this as a bug, with the patch and both versions.",
        )
    return tree


def _fits(trees: Trees, component: str, before: str, after: str, name: str, text: bytes) -> bool:
    """Return whether a text does exactly this change, and its `index` lines name the files before and after."""
    try:
        if tree_after(trees, before, text, name, component, PatchOptions()) != after:
            return False
    except PatchError:
        return False
    for file in parse_patch(text, name=name).files:
        for tree, oid in zip((before, after), file.ids or (), strict=False):
            entry = trees.find(tree, file.path)
            if not (entry.oid if entry is not None else "0" * 40).startswith(oid):
                return False
    return True


@dataclass(frozen=True)
class PatchsetPlace:
    """The folder of a new patchset, and its path in a manifest."""

    folder: Path
    entry: str


def place_of(state: PortState) -> PatchsetPlace:
    """Return the place for a patchset: beside a user's manifest, or in a checkout of npu-rl for a bundled one."""
    name = f"{state.component}/{state.version}"
    if state.output is not None:
        folder = Path(state.output)
        bundled = data_root() / "patchsets"
        if is_checkout() and folder.parent.parent == bundled:
            return PatchsetPlace(folder, folder.relative_to(bundled).as_posix())
        return PatchsetPlace(
            folder, _local(folder, None if state.is_bundled else Path(state.manifest).parent)
        )
    if not state.is_bundled:
        return PatchsetPlace(Path(state.manifest).parent / "patches" / name, f"./patches/{name}")
    if is_checkout() and os.access(data_root() / "patchsets", os.W_OK):
        return PatchsetPlace(data_root() / "patchsets" / name, name)
    return PatchsetPlace(Path("patches", name).absolute(), f"./patches/{name}")


def _local(folder: Path, beside: Path | None) -> str:
    beside = Path.cwd() if beside is None else beside
    return f"./{folder.relative_to(beside).as_posix()}" if folder.is_relative_to(beside) else str(folder)


def own_headers(folder: Path, texts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a written patchset where a person has changed only the header."""
    found = {}
    for name, text in texts.items():
        own = read_if_file(folder / name, LARGEST) if name != SERIES else None
        if own is not None and own != text and _without_header(own) == _without_header(text):
            found[name] = own
    return found


def _without_header(text: bytes) -> bytes | None:
    try:
        return text.removeprefix(header_of(text))
    except PatchError:
        return None


def write_patchset(
    place: PatchsetPlace, texts: Mapping[str, bytes], *, beside_others: bool = False
) -> list[Path]:
    """Write the files of a patchset, all or none; return those that changed.

    Args:
        beside_others: Whether the folder may have other files, such as those a user adds to an existing patchset.

    Raises:
        PatchError: If the folder has a file that is not of this patchset: nothing is written over it.
    """
    if not texts:
        return []
    _remove_leftovers(place.folder, texts)
    foreign = foreign_files(place.folder, texts)
    if beside_others:
        foreign = [name for name in foreign if name in texts]
    if foreign:
        raise PatchError(
            "The folder of the new patchset has other files",
            where=str(place.folder),
            why=", ".join(foreign[:20]),
            hint="The port is done and kept. Run the same command with --output DIR, or move these files away.",
        )
    changes = differing({place.folder / name: text for name, text in texts.items()})
    write_files(changes)
    return list(changes)


def _remove_leftovers(folder: Path, texts: Mapping[str, bytes]) -> None:
    """Remove a killed command's partial writes: each is the beginning of a file of this patchset."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = _UNFINISHED.fullmatch(path.name)
        if found is None or found[1] not in texts or path.is_symlink() or not path.is_file():
            continue
        if texts[found[1]].startswith(read_if_file(path, LARGEST) or b""):
            remove_tree(path)


def foreign_files(folder: Path, texts: Mapping[str, bytes]) -> list[str]:
    """Return the names in a folder that are not files of this patchset."""
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        return [folder.name]
    found = []
    with disk_errors(folder):
        names = sorted(path.name for path in folder.iterdir())
    for name in names:
        path = folder / name
        expected = texts.get(name)
        plain = path.is_file() and not path.is_symlink()
        if expected is None or not plain or read_if_file(path, LARGEST) != expected:
            found.append(name)
    return found
