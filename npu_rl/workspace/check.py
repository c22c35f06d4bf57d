"""Is what lies on disk what the receipt says? In Python, without git: no index bit can hide a change,
no user setting matters, and it works on a copied folder.

Quick: a file whose size, times and inode are as when it was last proven is taken as unchanged.
Deep: every raw byte and mode.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat as stat_module
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.objects import EXECUTABLE, FILE, SYMLINK

# A file changed this shortly before the record was written could change again with the same times:
# kernels stamp in ticks of up to 10 ms, and some file systems in whole seconds.
_TICK_NS = 100_000_000
_SECOND_NS = 2_000_000_000
_IMPORTABLE = (".py", ".so", ".pyd", ".pyc", ".pth", ".dylib", ".pyi")

Stat = list[int]


@dataclass(frozen=True)
class Difference:
    """One path that is not as the receipt says. kind: modified, missing, mode, type, untracked."""

    path: str
    kind: str


@dataclass
class Findings:
    """What a look at one root found. `products`: untracked files that can't be imported."""

    drift: list[Difference] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    stats: dict[str, Stat] = field(default_factory=dict)
    hashed: int = 0
    actual: dict[str, tuple[str, str]] = field(default_factory=dict)


def examine(
    root: Path,
    expected: Mapping[str, tuple[str, str]],
    known: Mapping[str, Stat],
    *,
    deep: bool = False,
) -> Findings:
    """Compare a folder with the receipt's (mode, blob id) by path. Nothing is written."""
    found = Findings()
    seen = 0
    prefix = len(os.fspath(root)) + 1
    pending = [os.fspath(root)]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = entry.path[prefix:]
            if entry.is_dir(follow_symlinks=False):
                if entry.name == ".git" and path != ".git":
                    found.drift.append(Difference(path + "/", "untracked"))
                elif path != ".git":
                    pending.append(entry.path)
                continue
            if path == ".git":
                continue  # the pointer to the workspace's own repository
            want = expected.get(path)
            if want is None:
                _untracked(entry, path, root, expected, found)
                continue
            seen += 1
            status = entry.stat(follow_symlinks=False)
            now = stat_of(status)
            found.stats[path] = now
            if not deep and known.get(path) == now:
                continue
            _compare(entry.path, path, status, want, found)
    if seen != len(expected):
        for path in expected:
            if path not in found.stats:
                found.drift.append(Difference(path, "missing"))
    found.drift.sort(key=lambda d: d.path)
    found.products.sort()
    return found


def stat_of(status: os.stat_result) -> Stat:
    """What tells that a file was not touched."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode]


def _compare(full: str, path: str, status: os.stat_result, want: tuple[str, str], found: Findings) -> None:
    mode, oid = blob_on_disk(full, status)
    found.hashed += 1
    found.actual[path] = (mode, oid)
    if (mode, oid) == want:
        return
    del found.stats[path]
    found.stats[path] = [-1]
    if mode == "?" or (mode == SYMLINK) != (want[0] == SYMLINK):
        kind = "type"
    elif oid != want[1]:
        kind = "modified"
    else:
        kind = "mode"
    found.drift.append(Difference(path, kind))


def blob_on_disk(full: str, status: os.stat_result) -> tuple[str, str]:
    """Mode and blob id of a file as its raw bytes are; ("?", "") for what is neither file nor link."""
    if stat_module.S_ISLNK(status.st_mode):
        data = os.fsencode(os.readlink(full))
        mode = SYMLINK
    elif stat_module.S_ISREG(status.st_mode):
        with open(full, "rb", buffering=0) as file:
            data = file.read()
        mode = EXECUTABLE if status.st_mode & 0o100 else FILE
    else:
        return "?", ""
    digest = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return mode, digest.hexdigest()


def _untracked(
    entry: os.DirEntry[str], path: str, root: Path, expected: Mapping[str, tuple[str, str]], found: Findings
) -> None:
    if _is_product(entry, path, root, expected):
        found.products.append(path)
    else:
        found.drift.append(Difference(path, "untracked"))


def _is_product(
    entry: os.DirEntry[str], path: str, root: Path, expected: Mapping[str, tuple[str, str]]
) -> bool:
    """Whether an untracked file can't change what Python imports from this tree."""
    if not entry.name.endswith(_IMPORTABLE):
        return True
    if entry.name.endswith(".pyi"):
        return True
    folder, _, name = path.rpartition("/")
    if name.endswith(".pyc") and folder.rpartition("/")[2] == "__pycache__":
        return _ordinary_bytecode(entry.path, root, folder.rpartition("/")[0], name, expected)
    return False


def _ordinary_bytecode(
    full: str, root: Path, package: str, name: str, expected: Mapping[str, tuple[str, str]]
) -> bool:
    """Bytecode that Python itself checks against a source of this tree (PEP 552: flags 0, time and size).

    One with an unchecked hash would hide a change of its source, so it counts as drift.
    """
    source = f"{package}/{name.split('.')[0]}.py" if package else f"{name.split('.')[0]}.py"
    if source not in expected:
        return False
    try:
        with open(full, "rb") as file:
            head = file.read(16)
    except OSError:
        return False
    return len(head) == 16 and head[4:8] == b"\0\0\0\0"


# -- what was proven -----------------------------------------------------------------------------------


def read_stats(path: Path) -> dict[str, dict[str, Stat]]:
    """The record of the last proof; empty if there is none that can be read."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return body["roots"] if isinstance(body["roots"], dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def dump_stats(roots: Mapping[str, Mapping[str, Stat]], now_ns: int) -> str:
    """Text of the record. Files too young to tell a later change by its time are left out.

    now_ns: the time by the clock of the file system (a server's may differ from ours).
    """
    safe = {root: {p: s for p, s in stats.items() if _settled(s, now_ns)} for root, stats in roots.items()}
    return json.dumps({"roots": safe}, separators=(",", ":")) + "\n"


def _settled(stat: Stat, now_ns: int) -> bool:
    if len(stat) != 5:
        return False
    changed = max(stat[1], stat[2])
    return changed < now_ns - (_TICK_NS if changed % 1_000_000_000 else _SECOND_NS)


def file_system_time(folder: Path) -> int:
    """Now, in ns, by the clock that stamps files in this folder."""
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=folder)
    try:
        return os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)
        os.unlink(name)
