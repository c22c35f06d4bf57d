"""Checks of an output folder before weights are written to it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from npu_rl.common.bounded import chunks, open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import HostError, UsageError
from npu_rl.weights.tensors.npu_rl_tensors.part_file import SampledSum

PLACES = ".places.json"  # of npu_rl_tensors: beside a file of torch_dist until .metadata has what is in it
_CHUNK = 4 * 1024 * 1024  # bytes that are read at once
_MARGIN = 256 * 1024 * 1024  # bytes for headers, index, metadata, the journal and the file system's own


def require_apart(source: Path, target: Path) -> None:
    """Raise UsageError if one of two folders is or contains the other."""
    one, other = source.resolve(), target.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise UsageError(
            "Input and output folders overlap",
            where=str(target),
            hint="Choose a folder outside the input's.",
        )


def require_no_links(target: Path, files: Iterable[str]) -> None:
    """Raise UsageError if an output subfolder is a symbolic link, which would redirect files elsewhere."""
    folders = {folder for name in files for folder in Path(name).parents}
    linked = sorted(str(folder) for folder in folders if (target / folder).is_symlink() and folder.name)
    if linked:
        raise UsageError(
            "A folder of the output is a symbolic link",
            where=str(target / linked[0]),
            hint="Choose another output folder.",
        )


def require_unchanged(target: Path, sizes: Mapping[str, int], what: str, last: Sequence[str] = ()) -> None:
    """Raise UsageError if a file of a finished output is missing or has another size.

    Args:
        what: What has made it: "cast" or "conversion".
        last: Files of any size that make it a checkpoint.
    """
    changed = sorted(name for name, size in sizes.items() if file_size(target / name) != size)
    changed += sorted(name for name in last if file_size(target / name) is None)
    if changed:
        raise UsageError(
            f"A finished {what} has changed since it was written",
            where=str(target),
            why=f"{changed[0]} is missing or has another size; {len(changed)} such "
            f"{'file' if len(changed) == 1 else 'files'}.",
            hint="Choose another output folder, or remove that one.",
        )


def require_space(target: Path, needed: int) -> None:
    """Raise HostError if the disk of a folder, or of its nearest existing parent, lacks `needed` bytes."""
    with disk_errors(target):
        place = next(path for path in (target, *target.absolute().parents) if path.exists())
        found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    needed += _MARGIN
    if needed > free:
        digits = next(
            digits for digits in (1, 3, 9) if f"{needed / 1e9:.{digits}f}" != f"{free / 1e9:.{digits}f}"
        )
        raise HostError(
            "The disk is too small for the output",
            where=str(target),
            why=f"It needs {needed / 1e9:.{digits}f} GB, and {free / 1e9:.{digits}f} GB are free.",
            hint="Choose a folder on another disk, or free some space.",
        )


def sampled_crc32_of(path: Path) -> int | None:
    """Return the sampled CRC-32 of a file; None if the file can't be read."""
    found = SampledSum()
    try:
        with open_file(path) as file:
            for data in chunks(file, _CHUNK):
                found.update(data)
    except OSError:
        return None
    return found.crc32


def file_size(path: Path) -> int | None:
    """Return a file's size in bytes; None if the file is inaccessible."""
    try:
        return path.stat().st_size
    except OSError:
        return None
