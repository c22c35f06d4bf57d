"""Verification that a download is complete, from the disk alone, without a network.

The hub's client stores the hub's metadata beside the files: each file's commit, and a hash of its content
(huggingface_hub/_local_folder.py@0.36: SHA-256 of a large file, git's blob id of a small one). Without it, as for files
from ModelScope or wget, files are counted, and the length of safetensors files is checked against their header.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.bounded import hash_file, open_file, parse_json, read_file, read_json
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError

_METADATA = Path(".cache") / "huggingface" / "download"
_INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000  # bytes; the library's own


@dataclass
class VerifiedDownload:
    """The result of a verification.

    Attributes:
        hashed: Files whose content has the hash that the hub stated.
        whole: Files without a known hash, whose length matches their own header.
        unknown: Other files, which can't be verified.
        faults: The faults, one line each, with the file.
        commits: The hub's commits that the files are from.
    """

    folder: Path
    hashed: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    size: int = 0

    @property
    def ok(self) -> bool:
        """Return whether there is no fault."""
        return not self.faults


def verify_download(
    folder: Path, needed: Sequence[str], revision: str | None, progress: Callable[[int, int], None]
) -> VerifiedDownload:
    """Verify the files of a folder.

    Args:
        needed: Files that must exist.
        revision: The commit that they must be from.
        progress: Called with the number of bytes that were hashed, and of all.

    Raises:
        DataError: If there is no such folder, or nothing in it.
        HostError: For errors of the disk.
    """
    if not folder.is_dir():
        raise DataError("No such folder", where=str(folder), hint="Download into it first.")
    found = VerifiedDownload(folder)
    stated = _stated(found)
    files = _files(folder)
    if not files:
        raise DataError("The folder has no files", where=str(folder), hint="Download into it first.")
    odd = sorted(name for name, path in files.items() if not path.is_file())
    found.faults += [f"{name}: a link that leads to no file, or a pipe or device" for name in odd]
    for name in odd:
        del files[name]
    with disk_errors(folder):
        found.size = sum(path.stat().st_size for path in files.values())
        _hash_all(found, {name: files[name] for name in stated if name in files}, stated, progress)
        for name in sorted(set(files) - set(stated)):
            _look_at(found, name, files[name])
    found.faults += [
        f"{name}: missing, the hub's client had it" for name in sorted({*stated} - {*files, *odd})
    ]
    expected = {*needed, *_shards(found, files)} - set(stated)
    found.faults += [f"{name}: missing" for name in sorted(expected - {*files, *odd})]
    if revision and found.commits != [revision]:
        from_ = ", ".join(found.commits) or "an unknown commit"
        found.faults.append(f"the files are from {from_}, not from {revision}")
    elif len(found.commits) > 1:
        found.faults.append(f"the files are from {len(found.commits)} commits: {', '.join(found.commits)}")
    found.faults += [
        f"{path.name}: a download that was not finished"
        for path in sorted((folder / _METADATA).rglob("*.incomplete"))
    ]
    return found


def _files(folder: Path) -> dict[str, Path]:
    """Return what is in a folder by name, but for folders and what is hidden."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return {one.as_posix(): folder / one for one in found if not any(part[0] == "." for part in one.parts)}


def _stated(found: VerifiedDownload) -> dict[str, str]:
    """Return the hash of each file that the hub's client downloaded."""
    root = found.folder / _METADATA
    stated = {}
    commits = set()
    for path in sorted(root.rglob("*.metadata")):
        name = path.relative_to(root).as_posix().removesuffix(".metadata")
        try:
            commit, etag, *_ = read_file(path, 4096).decode().split("\n")
        except (OSError, ValueError):
            commit = etag = ""
        if re.fullmatch(r"[0-9a-f]{40}", commit) and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag):
            stated[name] = etag
            commits.add(commit)
        else:
            found.faults.append(f"{name}: what the hub's client noted of it can't be read")
    found.commits = sorted(commits)
    return stated


def _hash_all(
    found: VerifiedDownload,
    files: dict[str, Path],
    stated: dict[str, str],
    progress: Callable[[int, int], None],
) -> None:
    total = sum(path.stat().st_size for path in files.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    def hashed(name: str) -> str:
        blob = f"blob {files[name].stat().st_size}\0".encode()
        digest = hashlib.sha256() if len(stated[name]) == 64 else hashlib.sha1(blob)
        return hash_file(files[name], digest, advance)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for name, digest in zip(files, pool.map(hashed, files), strict=True):
            if digest == stated[name]:
                found.hashed.append(name)
            else:
                found.faults.append(
                    f"{name}: its content is not what the hub stated: {digest[:12]}, not {stated[name][:12]}"
                )


def _look_at(found: VerifiedDownload, name: str, path: Path) -> None:
    """Record a file without a known hash."""
    size = path.stat().st_size
    if size == 0:
        found.faults.append(f"{name}: empty")
    elif path.suffix != ".safetensors":
        found.unknown.append(name)
    else:
        wanted = _length_of(path)
        if wanted == size:
            found.whole.append(name)
        else:
            stated = "its header is damaged" if wanted is None else f"its header states {wanted:,}"
            found.faults.append(f"{name}: {size:,} bytes, and {stated}")


def _length_of(path: Path) -> int | None:
    """Return the length that a safetensors file states; None for a damaged header."""
    with open_file(path) as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _LONGEST_HEADER + 1
        text = file.read(length) if length <= _LONGEST_HEADER else b""
    if not text.startswith(b"{"):  # as the library demands
        return None
    try:
        header = parse_json(text)
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        return 8 + int(length) + max(ends, default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return None


def _shards(found: VerifiedDownload, files: dict[str, Path]) -> set[str]:
    """Return the files that the index of a model names."""
    if _INDEX not in files:
        return set()
    try:
        names = set(read_json(files[_INDEX])["weight_map"].values())
        if all(isinstance(name, str) for name in names):
            return names
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    found.faults.append(f"{_INDEX}: it is not an index of weights")
    return set()
