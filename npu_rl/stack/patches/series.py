"""Patchsets: their patches, and the order of application.

A bundled patchset is a folder of `NNNN-slug.patch` files and a `series` file that names each of them once, in the
order to apply; `#` starts a comment. Patches inside a component's own tree keep their upstream names, and may be in
subfolders. No patch is skipped silently: an unlisted one is refused in a bundled patchset, unless it is in a subfolder
with a `series` of its own, and reported in a component's folder, which can't be changed here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import read_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import PatchError

SERIES = "series"
_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.patch")
_SUFFIXES = (".patch", ".diff")
_LIKE_A_PATCH = re.compile(r"\.(patch|diff)(\.[^/]*)?$", re.IGNORECASE)  # x.PATCH and x.patch.txt too
_LEFTOVERS = (".orig", ".rej", "~")
_MOST_NAMES = 20  # names in one message


@dataclass(frozen=True)
class PatchSource:
    """A patch file and its bytes, which are read once so that the hashed bytes are those applied.

    Attributes:
        name: Its name.
        path: The file; None for a patch in a component's tree.
        data: Its bytes.
    """

    name: str
    path: Path | None
    data: bytes


def read_patchset(folder: Path, *, lint: bool = False) -> tuple[PatchSource, ...]:
    """Return the patches of a folder in series order.

    Args:
        folder: The patchset.
        lint: Whether to require the whole header of each patch, as bundled patchsets must have it.

    Raises:
        PatchError: Unless `series` and the `*.patch` files name each other exactly, under names like
            `0001-fix-rollout.patch`, as plain files of this folder.
    """
    if not folder.is_dir():
        hint = "Correct `patches:` in the manifest; `./path` is relative to the manifest."
        raise PatchError(f"The patchset {folder.name} does not exist", where=str(folder), hint=hint)
    series = folder / SERIES
    if not series.is_file():
        hint = f"Write `{SERIES}`: one patch name per line, in the order to apply."
        raise PatchError(f"The patchset {folder.name} has no `{SERIES}` file", where=str(folder), hint=hint)
    names = _read_series(_content(_inside(series, folder)), str(series))
    for line, name in names.items():
        where = f"{series}:{line}"
        if not _NAME.fullmatch(name):
            why = "Names are four digits, a dash, and a slug: 0001-fix-rollout.patch."
            hint = "Rename the file, and its line in `series`."
            raise PatchError(f"{name!r} is not a patch name", where=where, why=why, hint=hint)
        if not (folder / name).is_file():
            hint = "Add the file, or take the line out of `series`."
            raise PatchError(f"The patch {name} does not exist", where=where, hint=hint)
    below = list(files_below(folder))
    others = [path.removesuffix(SERIES) for path in below if path.endswith(f"/{SERIES}")]
    unlisted = sorted(
        path
        for path in below
        # A port writes patches/up/1.1 into patches/up, which an export has written.
        if _is_unlisted(path, names.values()) and not path.startswith(tuple(others))
    )
    if unlisted:
        raise PatchError(
            f"{_shortened(unlisted)} would not be applied",
            where=str(series),
            why="Every patch in the folder and its subfolders must be in `series`, which names files of its own folder "
            "only. A subfolder with a `series` is a patchset of its own.",
            hint="Add a line for it, or remove the file. A subfolder can be an entry of `patches:` of its own.",
        )
    paths = [_inside(folder / name, folder) for name in names.values()]
    sources = tuple(PatchSource(path.name, path, _content(path)) for path in paths)
    if lint:
        for source in sources:
            _lint(source)
    return sources


def files_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files of a folder, through symbolic links too, each real folder once."""
    seen = {os.path.realpath(folder)}
    for at, folders, files in os.walk(folder, followlinks=True):
        yield from (Path(at, name).relative_to(folder).as_posix() for name in files)
        new = {name: os.path.realpath(Path(at, name)) for name in folders if name != ".git"}
        folders[:] = sorted(name for name, real in new.items() if real not in seen)
        seen.update(new.values())


def _is_unlisted(path: str, named: Collection[str]) -> bool:
    """Return whether a file looks like a patch and isn't listed. Leftovers of editors and of `patch` don't count."""
    return path not in named and _LIKE_A_PATCH.search(path) is not None and not path.endswith(_LEFTOVERS)


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


@dataclass(frozen=True)
class FolderPatches:
    """The patches of a folder in a component's tree.

    Attributes:
        sources: The patches, in order.
        passed_over: Files that look like patches and are not applied.
    """

    sources: tuple[PatchSource, ...]
    passed_over: tuple[str, ...]


def read_patchset_text(
    listing: Mapping[str, bool], read: Callable[[str], bytes], *, where: str = ""
) -> FolderPatches:
    """Return the patches of a folder in a component's tree.

    With a `series` file, these are the ones it lists, in its order; without one, the `.patch` and `.diff` files and
    the subfolders, by name.

    Args:
        listing: Each path in the folder, and whether it is a plain file.
        read: Returns the bytes of one of these paths.
        where: The folder, for messages.

    Raises:
        PatchError: If a listed patch is absent, or there is none.
    """
    plain = {tuple(path.split("/")): path for path, is_plain in listing.items() if is_plain}
    order = _in_order(plain, read, where)
    if not order:
        raise PatchError(
            "No patch is there", where=where or None, hint="Name a folder that holds .patch files."
        )
    sources = tuple(PatchSource(path, None, read(path)) for path in order)
    return FolderPatches(sources, tuple(sorted(path for path in listing if _is_unlisted(path, order))))


_Paths = Mapping[tuple[str, ...], str]  # the parts of a path below some folder, to the whole path


def _in_order(paths: _Paths, read: Callable[[str], bytes], where: str) -> list[str]:
    """Return the patches to apply among the paths below the folder `where`."""
    series = paths.get((SERIES,))
    if series is not None:
        return _order_of_series(read(series), paths, f"{where}/{SERIES}" if where else SERIES)
    order: list[str] = []
    for name in sorted({parts[0] for parts in paths}):
        below = {parts[1:]: path for parts, path in paths.items() if parts[0] == name and len(parts) > 1}
        if below:
            order += _in_order(below, read, f"{where}/{name}" if where else name)
        elif name.endswith(_SUFFIXES):
            order.append(paths[(name,)])
    return order


def _order_of_series(data: bytes, paths: _Paths, where: str) -> list[str]:
    order = []
    for line, name in _read_series(data, where).items():
        path = paths.get(tuple(name.removeprefix("./").split("/")))
        if path is None:
            raise PatchError(
                f"The patch {name} does not exist",
                where=f"{where}:{line}",
                why="The component's own `series` names it, but its folder does not hold it.",
                hint="Name the patches one by one in the manifest instead of the folder.",
            )
        order.append(path)
    return order


def _read_series(data: bytes, where: str) -> dict[int, str]:
    """Return names by line number. An empty series is valid: a component may no longer need patches."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError("The series is not UTF-8", where=where, hint="Save it as UTF-8.") from error
    names: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if not name:
            continue
        if re.search(r"\s", name):
            raise PatchError(
                f"{name!r} is more than one name",
                where=f"{where}:{number}",
                why="Options after a name, as quilt has them, are not read.",
                hint="Keep one name per line; set `strip` and `directory` in the manifest.",
            )
        if name in names.values():
            hint = "Remove one of the lines."
            raise PatchError(f"The patch {name} is listed twice", where=f"{where}:{number}", hint=hint)
        names[number] = name
    return names


def _inside(path: Path, folder: Path) -> Path:
    """Return the path of a file in the folder. Raises PatchError if a link leads out of the folder."""
    if path.resolve().parent != folder.resolve():
        raise PatchError(
            f"{path.name} is a symlink that leaves its patchset",
            where=str(path),
            why=f"It leads to {path.resolve()}.",
            hint="Replace the link by a copy of the file.",
        )
    return path


def read_patch(place: Path) -> PatchSource | None:
    """Return a patch by its path; None if it is missing. Raises PatchError if it is too large."""
    return PatchSource(place.name, place, _content(place)) if place.is_file() else None


def _content(path: Path) -> bytes:
    try:
        with disk_errors(path):
            return read_file(path)
    except (OSError, ValueError) as error:
        raise PatchError(f"{path.name} can't be read", where=str(path), why=str(error)) from None


def _lint(source: PatchSource) -> None:
    from npu_rl.stack.patches.parse_patch import parse_patch
    from npu_rl.stack.patches.patch_header import lint_header

    faults = lint_header(parse_patch(source.data, name=source.name).header)
    if faults:
        raise PatchError(
            f"The header of {source.name} is not complete",
            where=str(source.path),
            why="\n".join(fault.message for fault in faults),
            hint=f"Add or correct these lines above the first diff of {source.name}.",
        )
