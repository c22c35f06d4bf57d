"""Patchsets: their patches, and the order of application.

A patchset is a folder of patches and a `series` file that names each of them once, in the order to apply. As in
quilt's, `#` starts a comment, and `-pN` after a name is the number of leading folders to drop from the names in that
patch. Bundled patches are called `NNNN-slug.patch`; others have any names, and may be in subfolders. No patch is
skipped silently: one that `series` does not name, not even in a comment, is refused beside a manifest, unless it is in
a subfolder with a `series` of its own, and reported in a component's folder, which can't be changed here.
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
_BUNDLED_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.patch")
_SUFFIXES = (".patch", ".diff")
_LIKE_A_PATCH = re.compile(r"\.(patch|diff)(\.[^/]*)?$", re.IGNORECASE)  # x.PATCH and x.patch.txt too
_LEFTOVERS = (".orig", ".rej", "~")
_STRIP = re.compile(r"-p(\d{1,2})")
_MOST_NAMES = 20  # names in one message


@dataclass(frozen=True)
class PatchSource:
    """A patch file and its bytes, which are read once so that the hashed bytes are those applied.

    Attributes:
        name: Its path below the patchset.
        path: The file; None for a patch in a component's tree.
        data: Its bytes.
        strip: The N of `-pN` in its series; None without one.
    """

    name: str
    path: Path | None
    data: bytes
    strip: int | None = None


@dataclass(frozen=True)
class SeriesLine:
    """One name in a `series`. `number` is its line, from 1."""

    number: int
    name: str
    strip: int | None


def read_patchset(folder: Path, *, lint: bool = False) -> tuple[PatchSource, ...]:
    """Return the patches of a folder in series order.

    Args:
        folder: The patchset.
        lint: Whether to require the name and the whole header of each patch that bundled patchsets must have.

    Raises:
        PatchError: Unless `series` and the patches of the folder name each other exactly, as files below it.
    """
    if not folder.is_dir():
        hint = "Correct `patches:` in the manifest; `./path` is relative to the manifest."
        raise PatchError(f"The patchset {folder.name} does not exist", where=str(folder), hint=hint)
    series = folder / SERIES
    if not series.is_file():
        hint = f"Write `{SERIES}`: one patch name per line, in the order to apply."
        raise PatchError(f"The patchset {folder.name} has no `{SERIES}` file", where=str(folder), hint=hint)
    text = _content(_inside(folder, SERIES))
    lines = read_series(text, str(series))
    for line in lines:
        if lint and not _BUNDLED_NAME.fullmatch(line.name):
            raise PatchError(
                f"{line.name!r} is not the name of a bundled patch",
                where=f"{series}:{line.number}",
                hint="Call it by four digits, a dash and a slug: 0001-fix-rollout.patch.",
            )
        if not (folder / line.name).is_file():
            hint = "Add the file, or take the line out of `series`."
            raise PatchError(
                f"The patch {line.name} does not exist", where=f"{series}:{line.number}", hint=hint
            )
    _check_unlisted(folder, {line.name for line in lines}, text)
    paths = [_inside(folder, line.name) for line in lines]
    sources = tuple(
        PatchSource(line.name, path, _content(path), line.strip)
        for line, path in zip(lines, paths, strict=True)
    )
    if lint:
        for source in sources:
            _check_header(source)
    return sources


def _check_unlisted(folder: Path, named: Collection[str], series: bytes) -> None:
    """Raise PatchError for patches that `series` names neither in a line nor in a comment."""
    below = list(_files_below(folder))
    others = tuple(path.removesuffix(SERIES) for path in below if path.endswith(f"/{SERIES}"))
    left_out = set(" ".join(re.findall(r"#(.*)", series.decode("utf-8", "replace"))).split())
    unlisted = sorted(
        path
        for path in below
        # A port writes patches/up/1.1 into patches/up, which an export has written.
        if _is_unlisted(path, {*named, *left_out}) and not path.startswith(others)
    )
    if unlisted:
        raise PatchError(
            f"{_shortened(unlisted)} would not be applied",
            where=str(folder / SERIES),
            why="Every patch in the folder and its subfolders must be in `series`. A subfolder with a `series` is a "
            "patchset of its own.",
            hint="Add a line for it, put `#` before its name to leave it out, or remove the file.",
        )


def _files_below(folder: Path) -> Iterator[str]:
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
    """The patches of a folder that may lack a `series`.

    Attributes:
        sources: The patches, in order.
        passed_over: Files that look like patches and are not applied.
    """

    sources: tuple[PatchSource, ...]
    passed_over: tuple[str, ...]


def read_folder(folder: Path) -> FolderPatches:
    """Return the patches of a folder on disk without a `series`. Raises PatchError if there is none."""
    listing = {path: (folder / path).is_file() for path in _files_below(folder)}
    return read_patchset_text(listing, lambda path: _content(folder / path), where=str(folder))


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
    sources = tuple(PatchSource(path, None, read(path), strip) for path, strip in order.items())
    return FolderPatches(sources, tuple(sorted(path for path in listing if _is_unlisted(path, order))))


_Paths = Mapping[tuple[str, ...], str]  # the parts of a path below some folder, to the whole path
_Order = dict[str, "int | None"]  # the paths of patches in order, with their `-pN`


def _in_order(paths: _Paths, read: Callable[[str], bytes], where: str) -> _Order:
    """Return the patches to apply among the paths below the folder `where`."""
    series = paths.get((SERIES,))
    if series is not None:
        return _order_of_series(read(series), paths, f"{where}/{SERIES}" if where else SERIES)
    order: _Order = {}
    for name in sorted({parts[0] for parts in paths}):
        below = {parts[1:]: path for parts, path in paths.items() if parts[0] == name and len(parts) > 1}
        if below:
            order |= _in_order(below, read, f"{where}/{name}" if where else name)
        elif name.endswith(_SUFFIXES):
            order[paths[(name,)]] = None
    return order


def _order_of_series(data: bytes, paths: _Paths, where: str) -> _Order:
    order: _Order = {}
    for line in read_series(data, where):
        path = paths.get(tuple(line.name.split("/")))
        if path is None:
            raise PatchError(
                f"The patch {line.name} does not exist",
                where=f"{where}:{line.number}",
                why="The component's own `series` names it, but its folder does not hold it.",
                hint="Name the patches one by one in the manifest instead of the folder.",
            )
        order[path] = line.strip
    return order


def read_series(data: bytes, where: str) -> list[SeriesLine]:
    """Return the names of a `series`. An empty one is valid: a component may no longer need patches.

    Raises PatchError for a name that is listed twice, and for options other than `-pN`.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError("The series is not UTF-8", where=where, hint="Save it as UTF-8.") from error
    lines: dict[str, SeriesLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()
        if not words:
            continue
        name, options = words[0].removeprefix("./"), words[1:]
        found = _STRIP.fullmatch("".join(options))
        if options and found is None:
            raise PatchError(
                f"{' '.join(options)!r} after {name} is unsupported",
                where=f"{where}:{number}",
                why="Of quilt's options only `-pN` is read.",
                hint="Keep one name per line, without spaces.",
            )
        if name in lines:
            hint = "Remove one of the lines."
            raise PatchError(f"The patch {name} is listed twice", where=f"{where}:{number}", hint=hint)
        lines[name] = SeriesLine(number, name, None if found is None else int(found[1]))
    return list(lines.values())


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder. Raises PatchError if it leads out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise PatchError(
            f"{name} leads out of its patchset",
            where=str(path),
            why=f"It leads to {path.resolve()}.",
            hint="Copy the file into the folder.",
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


def _check_header(source: PatchSource) -> None:
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
