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
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.objects import EXECUTABLE, FILE, SYMLINK, object_id

# A file changed this shortly before the record was written could change again with the same times:
# kernels stamp in ticks of up to 10 ms, and some file systems in whole seconds.
_TICK_NS = 100_000_000
_SECOND_NS = 2_000_000_000
# A client of a network file system may still serve old bytes with the new times of a change that another
# host made (seen on GlusterFS, up to 0.8 s after it).
CACHED_NS = 3_000_000_000
_IMPORTABLE = (".py", ".pyc", ".so", ".pyd", ".dylib", ".pth")
_METADATA = (".dist-info", ".egg-info")  # what importlib.metadata looks for at the top of a path
_CHUNK = 1 << 20
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Stat = list[int]


@dataclass(frozen=True)
class Difference:
    """One path that is not as the receipt says. kind: modified, missing, mode, type, untracked.

    path: from the root; "" is the root itself, a folder ends in a slash."""

    path: str
    kind: str


@dataclass
class Findings:
    """What a look at one root found. `products`: untracked files that can't be imported.

    stats: what `stat` said of each file that is as it should be. hashed: how many had to be read."""

    drift: list[Difference] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    stats: dict[str, Stat] = field(default_factory=dict)
    hashed: int = 0


def examine_root(
    home: Path,
    root: str,
    expected: Mapping[str, tuple[str, str]],
    known: Mapping[str, Stat],
    *,
    deep: bool = False,
) -> Findings:
    """`examine` for "code" or "src/NAME" under `home`; a symlink on the way there is drift of the root."""
    if root.startswith("src/") and (home / "src").is_symlink():
        return Findings(drift=[Difference("", "type")])
    return examine(home / root, expected, known, deep=deep)


def examine(
    root: Path,
    expected: Mapping[str, tuple[str, str]],
    known: Mapping[str, Stat],
    *,
    deep: bool = False,
) -> Findings:
    """Compare a folder with the receipt's (mode, blob id) by path. Nothing is written.

    Raises OSError where something can't be read.
    """
    found = Findings()
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        found.drift.append(Difference("", "type"))
        return found
    differing: set[str] = set()
    for entry, path in _walk(root, found):
        want = expected.get(path)
        if want is None:
            _untracked(entry, path, expected, found)
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            now = stat_of(status)
            kind = None if not deep and known.get(path) == now else _compare(entry, status, want, found)
        except FileNotFoundError:
            continue  # gone while we looked
        if kind is None:
            found.stats[path] = now
        else:
            differing.add(path)
            found.drift.append(Difference(path, kind))
    if len(found.stats) + len(differing) != len(expected):
        for path in expected:
            if path not in found.stats and path not in differing:
                found.drift.append(Difference(path, "type" if _is_folder(root / path) else "missing"))
    found.drift.sort(key=lambda d: d.path)
    found.products.sort()
    return found


def _walk(root: Path, found: Findings) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Everything that is not a folder, with its path; `.git` folders of others go to the findings."""
    prefix = len(os.fspath(root)) + 1
    pending = [os.fspath(root)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = entry.path[prefix:]
            if path == ".git":
                continue  # the pointer to the workspace's own repository
            if not entry.is_dir(follow_symlinks=False):
                yield entry, path
            elif entry.name == ".git":
                found.drift.append(Difference(path + "/", "untracked"))
            else:
                pending.append(entry.path)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def stat_of(status: os.stat_result) -> Stat:
    """What tells that a file was not touched."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode]


def _compare(
    entry: os.DirEntry[str], status: os.stat_result, want: tuple[str, str], found: Findings
) -> str | None:
    mode, oid = blob_on_disk(entry.path, status)
    found.hashed += 1
    if (mode, oid) == want:
        return None
    if mode == "?" or (mode == SYMLINK) != (want[0] == SYMLINK):
        return "type"
    return "modified" if oid != want[1] else "mode"


def blob_on_disk(full: str, status: os.stat_result) -> tuple[str, str]:
    """Mode and blob id of a file as its raw bytes are; ("?", "") for what is neither file nor link.

    Raises OSError; FileNotFoundError if it went away.
    """
    if stat_module.S_ISLNK(status.st_mode):
        target = os.fsencode(os.readlink(full))
        return SYMLINK, object_id("blob", target)
    if not stat_module.S_ISREG(status.st_mode):
        return "?", ""
    digest = hashlib.sha1(b"blob %d\0" % status.st_size, usedforsecurity=False)
    handle = os.open(full, _OPEN)
    try:
        while chunk := os.read(handle, _CHUNK):
            digest.update(chunk)
    finally:
        os.close(handle)
    return EXECUTABLE if status.st_mode & 0o100 else FILE, digest.hexdigest()


def _untracked(
    entry: os.DirEntry[str], path: str, expected: Mapping[str, tuple[str, str]], found: Findings
) -> None:
    if _is_product(entry, path, expected):
        found.products.append(path)
    else:
        found.drift.append(Difference(path, "untracked"))


def _is_product(entry: os.DirEntry[str], path: str, expected: Mapping[str, tuple[str, str]]) -> bool:
    """Whether an untracked file can't change what Python finds in this tree."""
    if path.partition("/")[0].endswith(_METADATA):
        return False  # importlib.metadata would find its version and entry points
    if entry.is_symlink() and not os.path.isfile(entry.path):
        return False  # to a folder, it is a package; to nothing, it may become one
    folder, _, name = path.rpartition("/")
    if not name.endswith(_IMPORTABLE):
        return True
    package, _, last = folder.rpartition("/")
    if name.endswith(".pyc") and last == "__pycache__":
        return os.path.isfile(entry.path) and _ordinary_bytecode(entry.path, package, name, expected)
    return False


def _ordinary_bytecode(full: str, package: str, name: str, expected: Mapping[str, tuple[str, str]]) -> bool:
    """Bytecode that Python itself checks against a source of this tree (PEP 552: flags 0, time and size).

    One with an unchecked hash would hide a change of its source, so it counts as drift.
    """
    source = f"{name.partition('.')[0]}.py"
    if (f"{package}/{source}" if package else source) not in expected:
        return False
    try:
        with open(full, "rb") as file:
            head = file.read(16)
    except OSError:
        return False
    return len(head) == 16 and head[4:8] == b"\0\0\0\0"


# -- what was proven -----------------------------------------------------------------------------------


def read_stats(path: Path, receipt: str) -> dict[str, dict[str, Stat]]:
    """The record of the last proof; empty if it can't be read or is of another receipt.

    receipt: the digest of the receipt at hand. A record of it also says that the receipt was proven to
    describe the locked trees.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        roots = body["roots"]
        fits = body["receipt"] == receipt and all(isinstance(stats, dict) for stats in roots.values())
        return roots if fits else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def dump_stats(
    roots: Mapping[str, Mapping[str, Stat]],
    now_ns: int,
    receipt: str,
    *,
    margin: int = _TICK_NS,
    known: Mapping[str, Mapping[str, Stat]] | None = None,
) -> str:
    """Text of the record. Files too young to tell a later change by its time are left out.

    now_ns: when the first `stat` was made, by the clock of the file system (a server's may differ
    from ours). receipt: the digest of the receipt the files were compared with. margin: how old, in ns,
    a change must be; CACHED_NS if the content was read and not written by us. known: what the record has
    already, which stays if it still holds.
    """
    before = known or {}
    safe = {
        root: {
            p: s for p, s in stats.items() if before.get(root, {}).get(p) == s or _settled(s, now_ns, margin)
        }
        for root, stats in roots.items()
    }
    return json.dumps({"receipt": receipt, "roots": safe}, separators=(",", ":")) + "\n"


def _settled(stat: Stat, now_ns: int, margin: int) -> bool:
    changed = max(stat[1], stat[2])
    return changed < now_ns - (margin if changed % 1_000_000_000 else max(margin, _SECOND_NS))


def file_system_time(folder: Path) -> int:
    """Now, in ns, by the clock that stamps files in this folder."""
    probe = folder / f".clock-{os.getpid()}-{time.monotonic_ns()}"
    handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)
        probe.unlink(missing_ok=True)
