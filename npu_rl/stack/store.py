"""The local object database: a folder of sealed units.

A *unit* is the result of one delivery: an object folder with one pack, named by the request. It is built in a
quarantine and published by a single rename, so readers never see a partial unit and two processes can fetch the same
objects. Before a unit is used, its pack is hashed; a damaged one is removed and fetched again. Workspaces have objects
of their own, so deleting the whole store costs only a download.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.common.bounded import (
    NO_FILE,
    PACK_SEAL,
    open_file,
    pack_seal,
    parse_json,
    read_file,
    read_if_file,
)
from npu_rl.common.disk import disk_errors, remove_tree, use_of, write_atomically
from npu_rl.common.environment_variables import STORE
from npu_rl.common.errors import HostError
from npu_rl.common.folder_owner import require_own
from npu_rl.common.user_path import user_path
from npu_rl.stack.git.command import Git, init_bare

DAY = 86400.0
_HEAD = '{"sha256": "'


def default_root() -> Path:
    """Return the store's folder: `NPU_RL_STORE`, else one in the user's cache folder."""
    named = os.environ.get(STORE.name)
    if named:
        return user_path(named, STORE.name).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_path("npu-rl")) / "store"


@dataclass(frozen=True)
class Unit:
    """A published delivery, whose `objects` can be an alternate of a git repository."""

    key: str
    path: Path

    @property
    def objects(self) -> Path:
        """The object folder."""
        return self.path / "objects"

    def packs(self) -> list[Path]:
        """Return the unit's packs."""
        return sorted(self.objects.glob("pack/*.pack"))

    def facts(self) -> dict[str, Any]:
        """Return the facts recorded at publication, if any. Raises ValueError if they were changed.

        The digest detects damage, not forgery: a name among them is checked before it becomes part of a path.
        """
        record = parse_json(self.record())
        facts = record.get("facts") if isinstance(record, dict) else None
        return facts if isinstance(facts, dict) else {}

    def record(self) -> str:
        """Return the text of `unit.json`, which begins with the digest of the rest. Raises ValueError, OSError."""
        text = read_file(self.path / "unit.json", most=1 << 30).decode("utf-8")
        end = len(_HEAD) + 64
        if text[:end] != _HEAD + hashlib.sha256(text[end:].encode()).hexdigest():
            raise ValueError("its digest does not match")
        return text

    def size(self) -> int:
        """Return the size of its packs in bytes."""
        return sum(pack.stat().st_size for pack in self.packs())


def unit_key(kind: str, names: Iterable[str]) -> str:
    """Return the key of the unit for a request of `names`."""
    digest = hashlib.sha256("\0".join([kind, *sorted(names)]).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


class Freed(NamedTuple):
    """The result of `gc`.

    Attributes:
        units: The removed units.
        bytes: The bytes that this frees.
        foreign: For each unit that was kept because of it, a file that is not npu-rl's.
    """

    units: list[Unit]
    bytes: int
    foreign: list[Path]


class Store:
    """The store in one folder. Methods raise HostError for errors of the disk."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_root()
        self.units = self.root / "units"
        self.files = self.root / "files"
        self.temporary = self.root / "tmp"
        with disk_errors(self.root):
            make_store_folder(self.root)
            self._use = use_of(self.root.absolute() / LOCK)

    # -- units ---------------------------------------------------------------------------------

    def find(self, key: str) -> Unit | None:
        """Return the unit, or None if it is missing or damaged; a damaged one is removed."""
        unit = Unit(key, self.units / key)
        self._use.begin()
        with disk_errors(unit.path):
            if not intact(unit):
                self.discard(unit)
                return None
            with contextlib.suppress(OSError):  # a read-only store still serves
                os.utime(unit.path / "unit.json")
        return unit

    def discard(self, unit: Unit) -> None:
        """Remove a unit; processes that have its files open can continue to read them.

        Raises HostError if it has a file that npu-rl did not write.
        """
        foreign = first_foreign_in_unit(unit.path)
        if foreign is not None:
            raise HostError(
                "A damaged part of the store has a file that npu-rl did not write",
                where=str(foreign),
                why="The part has to be removed and fetched again, and that file would go with it.",
                hint="Move the file to another place, and run the command again.",
            )
        grave = self.temporary / f"gone-{os.urandom(8).hex()}"
        with contextlib.suppress(FileNotFoundError):
            unit.path.rename(grave)
            remove_tree(grave)

    @contextlib.contextmanager
    def quarantine(self) -> Iterator[Path]:
        """Create an empty bare repository, which is removed at the end unless it was published."""
        self._use.begin()
        folder = self.temporary / f"q-{os.urandom(8).hex()}"
        with disk_errors(self.root):
            try:
                folder.mkdir()
                init_bare(folder)
                yield folder
            finally:
                remove_tree(folder)

    def publish(self, quarantine: Path, key: str, facts: Mapping[str, Any]) -> Unit:
        """Publish the object folder of the quarantine as the unit `key`.

        If another process was first, its unit is kept: the same key means the same objects.
        """
        unit = Unit(key, self.units / key)
        with disk_errors(self.root):
            body = quarantine / "unit"
            body.mkdir()
            (quarantine / "objects").rename(body / "objects")
            for stray in (body / "objects").rglob("tmp_*"):
                stray.unlink()  # of a transfer that broke off and was tried again
            record = {**facts, "made": int(time.time())}
            rest = f'", "facts": {json.dumps(record, sort_keys=True)}}}\n'
            digest = hashlib.sha256(rest.encode()).hexdigest()
            (body / "unit.json").write_text(_HEAD + digest + rest, encoding="utf-8")
            try:
                body.rename(unit.path)
            except OSError:
                if self.find(key) is None:  # the existing unit was damaged and has been removed
                    body.rename(unit.path)
        return unit

    # -- files ---------------------------------------------------------------------------------

    def keep_file(self, data: bytes) -> str:
        """Store bytes by their SHA-256, such as patch texts, so that an old lock works after an upgrade."""
        digest = hashlib.sha256(data).hexdigest()
        if self.kept_file(digest) is None:
            with disk_errors(self.root):
                remove_tree(self.files / digest)  # damaged, or no file
                write_atomically(self.files / digest, data, folder=self.temporary)
        return digest

    def kept_file(self, digest: str) -> bytes | None:
        """Return the bytes with that SHA-256; None if they are missing or were changed on disk."""
        with disk_errors(self.files):
            data = read_if_file(self.files / digest)
        return data if data is not None and hashlib.sha256(data).hexdigest() == digest else None

    # -- housekeeping --------------------------------------------------------------------------

    def sweep(self) -> int:
        """Remove leftovers of killed processes from `tmp` and return their number.

        Nothing is removed beside another process that uses the store. Files that npu-rl did not name are left, and
        files that can't be removed (another user's, a read-only store).
        """
        removed = 0
        old = time.time() - DAY
        nobody = not self._use.begun  # no thread of ours is at work yet; and other processes?
        with self._use.alone() as alone:
            for path in self.temporary.iterdir():
                if not is_own_name("tmp", path.name):
                    continue
                with contextlib.suppress(OSError):
                    left = nobody and (alone or (alone is None and path.stat().st_mtime < old))
                    if left or path.name.startswith("gone-"):
                        remove_tree(path)
                        removed += not os.path.lexists(path)
        return removed

    def gc(self, *, days: float, dry_run: bool = False) -> Freed:
        """Remove units that were unused for `days`, except those with files that npu-rl did not write.

        Raises:
            HostError: If another process is using the store.
        """
        limit = time.time() - days * DAY
        with disk_errors(self.root), self._use.alone() as alone:
            if alone is False and not dry_run:
                raise HostError(
                    "Another npu-rl command is using the store",
                    where=str(self.root),
                    hint="Wait until it has finished, then run again.",
                )
            old = [
                Unit(path.name, path)
                for path in sorted(self.units.iterdir())
                if is_own_name("units", path.name) and (days <= 0 or _last_used(path) <= limit)
            ]
            foreign = {unit.key: first_foreign_in_unit(unit.path) for unit in old}
            gone = [unit for unit in old if foreign[unit.key] is None]
            files = (path for unit in gone for path in unit.path.rglob("*"))
            freed = sum(path.stat().st_size for path in files if path.is_file())
            if not dry_run:
                for unit in gone:
                    self.discard(unit)
                self.sweep()
        return Freed(gone, freed, [path for path in foreign.values() if path is not None])


def _last_used(unit: Path) -> float:
    try:
        return (unit / "unit.json").stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def intact(unit: Unit) -> bool:
    """Return whether the unit is intact: unchanged record, packs and indexes with valid SHA-1 trailers that match."""
    try:
        packs = unit.packs()
        unit.record()
        return bool(packs) and all(_sealed(pack) for pack in packs)
    except ValueError:
        return False
    except OSError as error:
        if error.errno in NO_FILE:
            return False
        raise


def _sealed(pack: Path) -> bool:
    seal, index = pack_seal(pack), pack.with_suffix(".idx")
    if seal is None or pack_seal(index) is None:
        return False
    with open_file(index) as file:
        file.seek(-2 * PACK_SEAL, os.SEEK_END)
        return file.read(PACK_SEAL).hex() == seal


def pack_loose(repository: Git) -> None:
    """Move the loose objects of a repository into one pack."""
    objects = str(repository.git_dir / "objects")
    folders = [name for name in os.listdir(objects) if len(name) == 2]
    loose = [
        (folder, name) for folder in folders for name in os.listdir(f"{objects}/{folder}") if len(name) == 38
    ]
    if loose:
        repository.run(
            "pack-objects", "-q", "--no-reuse-delta", f"{objects}/pack/pack",
            input="".join(sorted(f"{folder}{name}\n" for folder, name in loose)).encode(),
        )  # fmt: skip
        for folder, name in loose:
            Path(objects, folder, name).unlink()
        for folder in {folder for folder, _ in loose}:
            Path(objects, folder).rmdir()


MARK = "npu-rl-store.json"
LOCK = "in-use.lock"
FOLDERS = ("units", "files", "tmp")
_MARK_TEXT = json.dumps(
    {"npu-rl": "store", "version": 1, "about": "npu-rl removes files in units, files and tmp."}
)
_RANDOM = "[0-9a-f]{16}"
_FORMS = {
    "units": re.compile("[0-9a-f]{40}"),
    "files": re.compile("[0-9a-f]{64}"),
    "tmp": re.compile(rf"(q|gone)-{_RANDOM}|\.[0-9a-f]{{60}}\.[0-9a-f]{{12}}"),
}
_IN_A_UNIT = re.compile(
    r"unit\.json|objects(/(info|pack|[0-9a-f]{2}(/[0-9a-f]{38})?))?"
    r"|objects/pack/(pack-[0-9a-f]{40}\.(pack|idx|rev|keep|bitmap|mtimes|promisor)|multi-pack-index|tmp_[a-z]+_\w{6})"
    r"|objects/info/(packs|commit-graph)"
)


def is_own_name(folder: str, name: str) -> bool:
    """Return whether a name has the form of npu-rl's own names in this folder of the store."""
    return _FORMS[folder].fullmatch(name) is not None


def first_foreign_in_unit(unit: Path) -> Path | None:
    """Return a path in a unit's folder that is neither npu-rl's nor git's, or None."""
    paths = unit.rglob("*") if unit.is_dir() and not unit.is_symlink() else ()
    return next((path for path in paths if not _IN_A_UNIT.fullmatch(path.relative_to(unit).as_posix())), None)


def make_store_folder(root: Path) -> None:
    """Create the folder of a store, or verify that it is one.

    Raises:
        HostError: If it has other files, or is another user's and `safe_folders` does not list it. Nothing has
            changed then.
        OSError: For errors of the disk.
    """
    require_own("store", root, hint=f"Choose another folder by {STORE.name}.")
    root.mkdir(parents=True, exist_ok=True)
    mark = root / MARK
    foreign = min((path.name for path in root.iterdir()), default=None) if not mark.exists() else None
    if foreign is not None and not mark.exists():  # nor has another process made it meanwhile
        command = f"export {STORE.name}={shlex.quote(str(root / 'npu-rl-store'))}"
        raise HostError(
            "The folder is not a store of npu-rl, and it is not empty",
            where=str(root),
            why=f"It has {foreign}. npu-rl removes files in its store, so it takes only a folder that was empty.",
            hint=f"Use a folder of its own: {command}",
        )
    if not mark.exists():
        mark.write_text(f"{_MARK_TEXT}\n", encoding="utf-8")
    for name in FOLDERS:
        (root / name).mkdir(exist_ok=True)
