"""The local object database: a folder of sealed units.

A *unit* is what one delivery brought: an object folder with one pack, named by what was asked for.
A unit is built in a quarantine and published by a single rename, so readers never see half of one
and two processes that fetch the same thing can't harm each other. Before a unit is used its pack is
hashed; one that fails is thrown away and fetched again. Nothing here is needed once a workspace
stands: workspaces have objects of their own, so deleting the whole store costs only a download.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl import git
from npu_rl.errors import HostError

DAY = 86400.0


def default_root() -> Path:
    """`NPU_RL_STORE`, else the user's cache folder."""
    named = os.environ.get("NPU_RL_STORE")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_path("npu-rl")) / "store"


@dataclass(frozen=True)
class Unit:
    """A published delivery. `objects` may be lent to git as an alternate."""

    key: str
    path: Path

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    def packs(self) -> list[Path]:
        return sorted(self.objects.glob("pack/*.pack"))

    def facts(self) -> dict[str, Any]:
        """What was recorded at publication."""
        facts: dict[str, Any] = json.loads((self.path / "unit.json").read_text())
        return facts

    def size(self) -> int:
        """Bytes of its packs."""
        return sum(pack.stat().st_size for pack in self.packs())


def unit_key(kind: str, names: Iterable[str]) -> str:
    """The key of the unit that holds exactly what `names` ask for."""
    digest = hashlib.sha256("\0".join([kind, *sorted(names)]).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


class Store:
    """See the module. Methods raise HostError when the disk says no."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_root()
        self.units = self.root / "units"
        self.files = self.root / "files"
        self.temporary = self.root / "tmp"
        with disk_errors(self.root):
            for folder in (self.units, self.files, self.temporary):
                folder.mkdir(parents=True, exist_ok=True)

    # -- units ---------------------------------------------------------------------------------

    def find(self, key: str) -> Unit | None:
        """The unit, or None if it isn't here or is damaged (a damaged one is removed)."""
        unit = Unit(key, self.units / key)
        if not (unit.path / "unit.json").is_file():
            return None
        with disk_errors(unit.path):
            if not intact(unit):
                self.discard(unit)
                return None
            with contextlib.suppress(OSError):  # a read-only store still serves
                os.utime(unit.path / "unit.json")
        return unit

    def discard(self, unit: Unit) -> None:
        """Remove a unit; readers that hold its files open keep them."""
        grave = self.temporary / f"gone-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            unit.path.rename(grave)
        remove_tree(grave)

    @contextlib.contextmanager
    def quarantine(self) -> Iterator[Path]:
        """An empty bare repository that disappears at the end unless it was published."""
        from filelock import FileLock

        with disk_errors(self.root):
            folder = self.temporary / f"q-{secrets.token_hex(8)}"
            # Holding the lock says "alive": a folder whose lock is free was left by a killed process.
            lock = FileLock(str(folder) + ".lock")
            lock.acquire(timeout=0)
            try:
                folder.mkdir()
                git.init_bare(folder)
                yield folder
            finally:
                remove_tree(folder)
                lock.release()
                with contextlib.suppress(FileNotFoundError):
                    Path(str(folder) + ".lock").unlink()

    def publish(self, quarantine: Path, key: str, facts: Mapping[str, Any]) -> Unit:
        """Seal what the quarantine's object folder holds as the unit `key`.

        If another process was first, its unit is kept and ours dropped: same key, same objects.
        """
        unit = Unit(key, self.units / key)
        with disk_errors(self.root):
            body = quarantine / "unit"
            body.mkdir()
            (quarantine / "objects").rename(body / "objects")
            record = {**facts, "made": int(time.time())}
            (body / "unit.json").write_text(json.dumps(record, sort_keys=True))
            try:
                body.rename(unit.path)
            except OSError:
                if not (unit.path / "unit.json").is_file():
                    raise
        return unit

    # -- files ---------------------------------------------------------------------------------

    def keep_file(self, data: bytes) -> str:
        """Keep bytes by their SHA-256 (patch texts: an old lock outlives an upgrade)."""
        digest = hashlib.sha256(data).hexdigest()
        target = self.files / digest
        if not target.is_file():
            with disk_errors(self.root):
                write_atomically(target, data, folder=self.temporary)
        return digest

    def kept_file(self, digest: str) -> bytes | None:
        """The bytes with that SHA-256, or None; bytes that changed on disk are not returned."""
        try:
            data = (self.files / digest).read_bytes()
        except FileNotFoundError:
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    # -- housekeeping --------------------------------------------------------------------------

    def sweep(self) -> int:
        """Remove what killed processes left in `tmp`; how many things that were."""
        from filelock import FileLock, Timeout

        removed = 0
        for lock_file in sorted(self.temporary.glob("*.lock")):
            lock = FileLock(str(lock_file))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            folder = lock_file.with_suffix("")
            if folder.exists() or lock_file.exists():
                removed += 1
            remove_tree(folder)
            lock.release()
            with contextlib.suppress(FileNotFoundError):
                lock_file.unlink()
        old = time.time() - DAY
        for path in self.temporary.iterdir():
            locked = path.suffix == ".lock" or Path(f"{path}.lock").exists()
            if locked:
                continue
            with contextlib.suppress(FileNotFoundError):
                orphan = path.name.startswith(("q-", "gone-")) or path.stat().st_mtime < old
                if orphan:
                    remove_tree(path)
                    removed += 1
        return removed

    def gc(self, *, days: float, dry_run: bool = False) -> tuple[list[Unit], int]:
        """Drop units unused for `days`; which ones, and how many bytes that frees."""
        limit = time.time() - days * DAY
        gone, freed = [], 0
        for path in sorted(self.units.iterdir()):
            unit = Unit(path.name, path)
            try:
                used = (path / "unit.json").stat().st_mtime
            except FileNotFoundError:
                used = 0.0
            if used <= limit:
                freed += sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
                gone.append(unit)
                if not dry_run:
                    self.discard(unit)
        if not dry_run:
            self.sweep()
        return gone, freed


def intact(unit: Unit) -> bool:
    """Whether the unit's pack and index are the bytes git sealed with a SHA-1 at their end."""
    packs = unit.packs()
    if not packs:
        return False
    try:
        for pack in packs:
            sealed = _seal(pack)
            index = _seal(pack.with_suffix(".idx"))
            if sealed is None or index is None:
                return False
    except FileNotFoundError:
        return False
    return True


def _seal(path: Path) -> bytes | None:
    data = path.read_bytes()
    body, seal = memoryview(data)[:-20], data[-20:]
    if len(seal) != 20 or hashlib.sha1(body, usedforsecurity=False).digest() != seal:
        return None
    return seal


def pack_loose(repository: git.Git) -> None:
    """Move the loose objects of a repository into one pack, so that it can be sealed."""
    objects = repository.git_dir / "objects"
    loose = [p for p in objects.glob("[0-9a-f][0-9a-f]/*") if len(p.name) == 38]
    wanted = [p.parent.name + p.name for p in loose]
    if wanted:
        repository.run(
            "pack-objects", "-q", "--no-reuse-delta", str(objects / "pack" / "pack"),
            input="\n".join(sorted(wanted)).encode() + b"\n",
        )  # fmt: skip
        for path in loose:
            path.unlink()
        for folder in {p.parent for p in loose}:
            folder.rmdir()


def remove_tree(path: Path) -> None:
    """Remove a folder or file, whatever its permissions; gone already is fine.

    A git process whose parent was killed may still be writing into it: try until it is gone.
    """
    for attempt in range(50):
        if not path.is_symlink() and path.is_dir():
            shutil.rmtree(path, onerror=_force)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        if not os.path.lexists(path):
            return
        time.sleep(0.02 * min(attempt + 1, 10))


def _force(_function: object, name: str, _error: object) -> None:
    with contextlib.suppress(OSError):
        parent = os.path.dirname(name)
        os.chmod(parent, 0o700)
        if os.path.isdir(name) and not os.path.islink(name):
            os.chmod(name, 0o700)
            shutil.rmtree(name, ignore_errors=True)
        else:
            os.unlink(name)


def write_atomically(path: Path, data: bytes, *, folder: Path | None = None, sync: bool = False) -> None:
    """Write a file so that it is either the old one or the new one, never a part."""
    temporary = (folder or path.parent) / f".{path.name[:60]}.{secrets.token_hex(6)}"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn what a disk can say into an error a person can act on."""
    import errno

    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: (
                "The disk is full",
                "Free some space (`npu-rl store gc` may help), then run again.",
            ),
            errno.EDQUOT: ("The disk quota is used up", "Free some space, then run again."),
            errno.EACCES: ("No permission", "Check who owns the folder, or choose another."),
            errno.EPERM: ("No permission", "Check who owns the folder, or choose another."),
            errno.EROFS: ("The file system is read-only", "Choose another folder."),
        }
        what, hint = reasons.get(error.errno or 0, (None, None))
        if what is None:
            raise
        raise HostError(what, where=str(error.filename or place), why=error.strerror, hint=hint) from error
