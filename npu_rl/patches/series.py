"""Patchsets: which patches there are, and in which order.

A patchset of ours is a folder of `NNNN-slug.patch` files and a `series` file that names each of them
once, in the order to apply; `#` starts a comment. Patches inside a component's own tree keep the names
that upstream gave them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.errors import PatchError

SERIES = "series"
_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.patch")
_SUFFIXES = (".patch", ".diff")


@dataclass(frozen=True)
class PatchSource:
    """A patch file and the bytes read from it once: what is hashed is what is applied.

    path: None for a patch that lives in a component's tree.
    """

    name: str
    path: Path | None
    data: bytes


def read_patchset(folder: Path, *, lint: bool = False) -> tuple[PatchSource, ...]:
    """The patches of a folder in series order.

    lint: also demand the whole header of each patch, as bundled patchsets must have it.
    Raises PatchError unless `series` and the `*.patch` files name each other exactly, under names
    like `0001-fix-rollout.patch`, as plain files of this folder.
    """
    if not folder.is_dir():
        raise PatchError(
            f"The patchset {folder.name} does not exist",
            where=str(folder),
            hint="Correct `patches:` in the manifest; `./path` is relative to the manifest.",
        )
    series = folder / SERIES
    if not series.is_file():
        raise PatchError(
            f"The patchset {folder.name} has no `{SERIES}` file",
            where=str(folder),
            hint=f"Write `{SERIES}`: one patch name per line, in the order to apply.",
        )
    _check_inside(series, folder)
    names = _listed(series.read_bytes(), str(series))
    for line, name in names.items():
        if not _NAME.fullmatch(name):
            raise PatchError(
                f"{name!r} is not a patch name",
                where=f"{series}:{line}",
                why="Names are four digits, a dash, and a slug: 0001-fix-rollout.patch.",
                hint="Rename the file, and its line in `series`.",
            )
        if not (folder / name).is_file():
            raise PatchError(
                f"The patch {name} does not exist",
                where=f"{series}:{line}",
                hint="Add the file, or take the line out of `series`.",
            )
    unlisted = sorted(p.name for p in folder.glob("*.patch") if p.name not in names.values())
    if unlisted:
        raise PatchError(
            f"{', '.join(unlisted)} would not be applied",
            where=str(series),
            why="Every patch of the folder must be in `series`.",
            hint="Add a line for it, or remove the file.",
        )
    sources = tuple(_read(folder, name) for name in names.values())
    if lint:
        for source in sources:
            _lint(source)
    return sources


def read_patchset_text(listing: Mapping[str, bytes], *, where: str = "") -> tuple[PatchSource, ...]:
    """The patches among the files of a folder in a component's tree: file name to bytes.

    With a `series` file, its order and its choice; else every `.patch` and `.diff`, by name.
    where: the folder, for messages. Raises PatchError for a listed patch that is absent, or for none.
    """
    folder = f"{where}/" if where else ""
    if SERIES in listing:
        names = _listed(listing[SERIES], folder + SERIES)
        for line, name in names.items():
            if name not in listing:
                raise PatchError(
                    f"The patch {name} does not exist",
                    where=f"{folder}{SERIES}:{line}",
                    why="The component's own `series` names it, but its folder does not hold it.",
                    hint="Name the patches one by one in the manifest instead of the folder.",
                )
        order = list(names.values())
    else:
        order = sorted(name for name in listing if name.endswith(_SUFFIXES))
    if not order:
        raise PatchError(
            "No patch is there", where=where or None, hint="Name a folder that holds .patch files."
        )
    return tuple(PatchSource(name, None, listing[name]) for name in order)


def _listed(data: bytes, where: str) -> dict[int, str]:
    """Line number to name. An empty series is valid: a component may need no patch any more."""
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
            raise PatchError(
                f"The patch {name} is listed twice",
                where=f"{where}:{number}",
                hint="Remove one of the lines.",
            )
        names[number] = name
    return names


def _check_inside(path: Path, folder: Path) -> None:
    if path.resolve().parent != folder.resolve():
        raise PatchError(
            f"{path.name} is a symlink that leaves its patchset",
            where=str(path),
            why=f"It leads to {path.resolve()}.",
            hint="Replace the link by a copy of the file.",
        )


def _read(folder: Path, name: str) -> PatchSource:
    path = folder / name
    _check_inside(path, folder)
    return PatchSource(name, path, path.read_bytes())


def _lint(source: PatchSource) -> None:
    from npu_rl.patches.header import lint_header
    from npu_rl.patches.parse import parse_patch

    problems = lint_header(parse_patch(source.data, name=source.name).header)
    if problems:
        raise PatchError(
            f"The header of {source.name} is not complete",
            where=str(source.path),
            why="\n".join(problems),
            hint="Correct these lines above the first diff.",
        )
