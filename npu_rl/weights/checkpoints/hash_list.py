"""The hash list of a checkpoint, for verifying copies on other nodes; `sha256sum -c` can read it, too."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import hash_file, read_file
from npu_rl.common.disk import disk_errors, write_atomically
from npu_rl.common.errors import UsageError, WeightsError
from npu_rl.weights.checkpoints.other_files import HASH_LIST as NAME
from npu_rl.weights.checkpoints.output_folder import NOTE

_DIST_METADATA = ".metadata"  # without it the files of torch_dist are no checkpoint

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True)
class HashComparison:
    """The result of comparing a folder with its hash list.

    Attributes:
        files: Number of files in the list.
        bytes: Bytes that were read.
        changed: Names of files with another hash.
        missing: Names of files that the list has and the folder does not.
        extra: Names of files that the folder has and the list does not.
    """

    files: int
    bytes: int
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Return whether all files are present and unchanged."""
        return not (self.changed or self.missing)


def write_hashes(folder: Path, count: int, progress: Callable[[int], None]) -> HashComparison:
    """Hash all files in a folder, in any layout, and write the list. Raises UsageError if a list exists.

    Args:
        count: Files to read at once.
        progress: Called with bytes that were read, from several threads.
    """
    path = folder / NAME
    if path.exists():
        raise UsageError(
            "The folder already has a list of hashes",
            where=str(path),
            hint="Verify it with --verify-hashes. If the files have changed on purpose, remove it first.",
        )
    names = _files(folder)
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None or not names:
        raise WeightsError(
            "The folder has no files" if odd is None else "The name of a file can't be listed",
            where=str(folder / (odd or "")),
            why=odd and "It has a line break, another control character, or bytes that are not UTF-8.",
            hint=odd and "Rename or remove the file.",
        )
    sums = _hash_files(folder, names, count, progress)
    text = "".join(f"{sums[name]}  {name}\n" for name in names)
    with disk_errors(path):
        write_atomically(path, text.encode(), sync=True)
    return HashComparison(len(names), _size(folder, names), (), (), ())


def verify_hashes(folder: Path, count: int, progress: Callable[[int], None]) -> HashComparison:
    """Hash the listed files and compare them with the list. Raises WeightsError if the list can't be read."""
    expected = _read_list(folder / NAME)
    present = _files(folder)
    there = [name for name in expected if name in present]
    sums = _hash_files(folder, there, count, progress)
    return HashComparison(
        files=len(expected),
        bytes=_size(folder, there),
        changed=tuple(name for name in there if sums[name] != expected[name]),
        missing=tuple(name for name in expected if name not in present),
        extra=tuple(name for name in present if name not in expected),
    )


def bytes_to_read(folder: Path) -> int:
    """Return the total size in bytes of the files that a hash list covers."""
    return _size(folder, _files(folder))


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files in a folder and its subfolders, following links.

    Hidden ones but `.metadata` of `torch_dist` are left out: a download from a hub keeps its notes in `.cache`. So are
    the list itself and the note of a cast or conversion.
    """
    found = []
    with disk_errors(folder):
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            below = Path(place).relative_to(folder)
            seen = [name for name in names if not name.startswith(".") or name == _DIST_METADATA]
            paths = [(below / name).as_posix() for name in seen]
            found += [path for path in paths if path not in (NAME, NOTE) and (folder / path).is_file()]
    return sorted(found)


def _size(folder: Path, names: Sequence[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


def _hash_files(
    folder: Path, names: Sequence[str], count: int, progress: Callable[[int], None]
) -> dict[str, str]:
    """Hash files in parallel threads: hashlib and file reads release the GIL, so processes aren't needed."""
    largest_first = sorted(names, key=lambda name: -(folder / name).stat().st_size)
    with ThreadPoolExecutor(max_workers=max(1, count)) as pool:
        futures = {name: pool.submit(_hash_file, folder / name, progress) for name in largest_first}
        try:
            return {name: futures[name].result() for name in names}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _hash_file(path: Path, progress: Callable[[int], None]) -> str:
    with disk_errors(path):
        return hash_file(path, progress=progress)


def _read_list(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise WeightsError(
            "The folder has no list of hashes",
            where=str(path),
            hint="Copy it from the node that wrote it with --write-hashes.",
        )
    found: dict[str, str] = {}
    try:
        lines = read_file(path).decode().removesuffix("\n").split("\n")
        for number, line in enumerate(lines, 1):
            match = _LINE.fullmatch(line)
            if match is None or match[2] in found or ".." in match[2].split("/") or match[2][0] == "/":
                raise ValueError(f"line {number} is not the hash and path of another file in the folder")
            found[match[2]] = match[1]
    except (OSError, ValueError) as error:
        raise WeightsError("The list of hashes can't be read", where=str(path), why=str(error)) from error
    return found
