"""Removal of the unfinished files and staging folders of a killed cast, conversion or export."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from npu_rl.common.disk import disk_errors, remove_tree, take_over

_UNFINISHED = re.compile(r"(?P<of>.+?)(\.[0-9a-f]{8})?\.part(\.places\.json((\.[0-9a-f]{8})?\.part)?)?")
_TEMPORARY = re.compile(
    r"\.(?P<of>.{1,60})\.[0-9a-f]{12}"
)  # of disk.write_atomically, which cuts long names off

_LOCK = ".lock"


def remove_unfinished(folder: Path, files: Iterable[str]) -> None:
    """Remove the unfinished files of an output folder; files with other names are kept.

    Args:
        files: The output's own files, as paths in the folder.

    Raises:
        HostError: For errors of the disk.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for file in map(PurePosixPath, files):
        names[str(file.parent)].add(file.name)
    with disk_errors(folder):
        for parent, own in names.items():
            below = folder / parent
            if not below.is_dir():
                continue
            for path in list(below.iterdir()):
                found, begun = _UNFINISHED.fullmatch(path.name), _TEMPORARY.fullmatch(path.name)
                ours = (found and found["of"] in own) or (
                    begun and begun["of"] in {name[:60] for name in own}
                )
                if ours and path.is_file() and not path.is_symlink():
                    path.unlink()


def staging_folder(target: Path) -> tuple[Path, Path]:
    """Return a new hidden path beside the target, in the same file system, and the path of its lock."""
    staged = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")
    return staged, staged.with_suffix(_LOCK)


def remove_left_over(target: Path) -> None:
    """Remove the staging folders of killed exports to the target. Folders whose lock is held are kept."""
    form = re.compile(re.escape(f".{target.name[:100]}.") + "[0-9a-f]{12}" + re.escape(_LOCK))
    there = target.parent.iterdir() if target.parent.is_dir() else ()
    for lock in [path for path in there if form.fullmatch(path.name)]:
        handle = take_over(lock)
        if handle is None:
            continue
        try:
            remove_tree(lock.with_suffix(".part"))
            with contextlib.suppress(OSError):
                lock.unlink()
        finally:
            os.close(handle)
