"""Files and folders that an installation moves: out of an environment, and into it.

Everything is a path relative to the environment's root. A folder is moved as a whole where that is right, since 200
packages have 60,000 files.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.stack.installation.target_python import InstalledPackage, TargetPython

_CACHE = "__pycache__"
_STAGED_BY_UV = frozenset({".lock"})
_Tree = dict[str, Any]  # a folder's names; of a file, None


def recorded_files(record: str, site: str) -> Iterator[str]:
    """Yield the files of a RECORD as normalized paths below the root, without those outside of it.

    Args:
        site: The folder of packages, relative to the root.
    """
    lines = (line for line in record.splitlines() if "\0" not in line)  # before Python 3.11 an error of csv
    for row in csv.reader(lines):
        if not row or not row[0] or row[0].startswith("/"):
            continue
        path = os.path.normpath(f"{site}/{row[0]}")
        if path != ".." and not path.startswith("../"):
            yield path


def files_of(target: TargetPython, package: InstalledPackage) -> set[str]:
    """Return the files of an installed package below the root."""
    site = package.site.relative_to(target.root).as_posix()
    return set(recorded_files(package.distribution.read_text("RECORD") or "", site))


def outgoing(target: TargetPython, files: Collection[str]) -> list[str]:
    """Return the paths to move out so that none of these files remains.

    Byte code goes with its source: Python compares the two only by time and size. A folder in which something else is
    stays.
    """
    tree: _Tree = {}
    for path in files:
        node = tree
        *folders, name = PurePosixPath(path).parts
        for folder in folders:
            below = node.setdefault(folder, {})
            node = below if isinstance(below, dict) else {}
        node.setdefault(name, None)
    shared = {"", *map(str, _above(target.site.relative_to(target.root))), "bin"}
    return _leaving(target.root, "", tree, shared)[0]


def _above(path: Path) -> Iterator[Path]:
    yield path
    yield from path.parents


def _leaving(
    root: Path, folder: str, tree: Mapping[str, Any], shared: Collection[str]
) -> tuple[list[str], bool]:
    """Return the paths that leave a folder, and whether the folder has nothing else."""
    leaving, complete = [], True
    for entry in sorted(os.scandir(root / folder), key=lambda one: one.name):
        path = f"{folder}/{entry.name}" if folder else entry.name
        known = entry.name in tree
        below = tree.get(entry.name)
        if entry.is_dir(follow_symlinks=False):
            if entry.name == _CACHE:
                below = {**(below or {}), **_byte_code(root / path, tree)}
            if not below:
                complete = False
                continue
            found, all_of_it = _leaving(root, path, below, shared)
            leaving += found
            complete = complete and all_of_it
        elif known and below is None:
            leaving.append(path)
        else:
            complete = False
    if complete and leaving and folder not in shared:
        return [folder], True
    return leaving, False


def _byte_code(cache: Path, sources: Mapping[str, Any]) -> _Tree:
    """Return the byte code in a cache whose sources leave, such as module.cpython-311.pyc for module.py."""
    return {
        path.name: None
        for path in cache.iterdir()
        if path.name.endswith(".pyc") and f"{path.name.partition('.')[0]}.py" in sources
    }


def incoming(root: Path, staging: Path, leaving: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the moves from a staging folder, and the files in their way that are not moved out."""
    gone = set(leaving)
    coming: list[str] = []
    in_the_way: list[str] = []

    def visit(folder: str) -> None:
        for entry in sorted(os.scandir(staging / folder), key=lambda one: one.name):
            path = f"{folder}/{entry.name}" if folder else entry.name
            place = root / path
            if not folder and (entry.name in _STAGED_BY_UV or (entry.is_symlink() and place.is_symlink())):
                continue  # lib64 of a virtual environment leads to its lib
            if path in gone or not os.path.lexists(place):
                coming.append(path)
            elif entry.is_dir(follow_symlinks=False) and place.is_dir() and not place.is_symlink():
                visit(path)
            else:
                coming.append(path)
                in_the_way.append(path)

    visit("")
    return coming, in_the_way


def check_in_the_way(
    target: TargetPython, paths: Collection[str], leaving: Collection[str], host: Collection[str]
) -> None:
    """Raise HostError if a folder, or a file of the host's packages, is in the way.

    Args:
        leaving: Names of packages that are replaced.
        host: Names of the host's packages.
    """
    folder = next((path for path in paths if (target.root / path).is_dir()), None)
    if folder is not None:
        raise HostError(
            "A folder is where a package has a file",
            where=str(target.root / folder),
            hint="Move the folder elsewhere, or install into an environment of its own: --venv DIR",
        )
    for name in host if paths else ():
        package = target.packages.get(name)
        if package is None or name in leaving or not package.site.is_relative_to(target.root):
            continue
        theirs = sorted(set(paths) & files_of(target, package))
        if theirs:
            raise HostError(
                f"A package would overwrite files of the host's {name}",
                where=str(target.root / theirs[0]),
                why=f"{len(theirs)} of its files are in a package that was to be installed.",
                hint="Install into an environment of its own: --venv DIR",
            )
