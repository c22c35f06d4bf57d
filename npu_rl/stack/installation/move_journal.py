"""Replacement of an environment's packages by renames that a journal makes recoverable.

Until the journal is written, the environment is as it was; from then on the next npu-rl can finish. What exists
shows which renames are done, in both directions, so a kill at any moment is recovered by doing the same again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from npu_rl.common.bounded import parse_json
from npu_rl.common.confined_changes import Confined
from npu_rl.common.disk import sync_folder
from npu_rl.common.errors import HostError
from npu_rl.common.process import stop_remaining

FOLDER = ".npu-rl-install"
_JOURNAL, _LOCK, NEW = "journal.json", "busy.lock", "new-environment"
_NAME = re.compile(r"(?:staging|old)-[0-9a-f]{12}")
_LARGEST = 32 << 20  # bytes; an empty environment and 200 packages take 40 kB


@dataclass(frozen=True)
class InstallationFolder:
    """npu-rl's own folder in an environment, while it installs there."""

    root: Path

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root / FOLDER

    @property
    def journal(self) -> Path:
        """The journal of moves that have begun."""
        return self.path / _JOURNAL

    @property
    def mark(self) -> Path:
        """The mark of an environment that npu-rl makes, and that has nothing else yet."""
        return self.path / NEW

    @property
    def inside(self) -> Confined:
        """Changes below the environment that follow no link."""
        return Confined(self.root)

    def is_interrupted(self) -> bool:
        """Return whether an installation was stopped while files were moved."""
        return os.path.lexists(self.journal)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the environment exclusively. The folder is removed at the end, unless moves are unfinished.

        Raises:
            HostError: If another npu-rl installs here.
        """
        handle = self._locked()
        try:
            yield
        finally:
            if not self.is_interrupted():
                self.inside.remove(self.mark)  # first: an environment with it is made again
                self.inside.remove(self.path)
            os.close(handle)

    def _locked(self) -> int:
        path = self.path / _LOCK
        while True:
            self.inside.make(self.path)
            try:
                handle = self.inside.handle(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # another one has just ended and taken its folder away
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise HostError(
                    "Another npu-rl installs into this environment",
                    where=str(self.root),
                    hint="Wait until it has finished, then run again.",
                ) from None
            except OSError:
                pass  # a file system without locks
            status = self.inside.status(path)
            if status is not None and os.path.samestat(status, os.fstat(handle)):
                return handle
            os.close(handle)

    def sweep(self) -> None:
        """Remove what a killed installation left before its journal. The folder must be locked.

        Raises:
            HostError: If a process of it can't be ended.
        """
        for path in self.path.iterdir():
            if _NAME.fullmatch(path.name):
                stop_remaining(
                    staging_mark(path.name), 0.0
                )  # uv outlives a kill of npu-rl, and would write on
        for path in self.path.iterdir():
            if path.name not in (_LOCK, NEW):
                self.inside.remove(path)


def staging_mark(name: str) -> str:
    """Return the mark of the processes that fill a staging folder (`common/process.py`), from its name."""
    return name.replace("-", "")


@dataclass(frozen=True)
class MoveJournal:
    """Moves that have begun.

    Attributes:
        staging: Name of the folder that has what comes in.
        old: Name of the folder for what goes out.
        leaving: Paths that go out.
        coming: Paths that come in.
        packages: Number of packages that come, for messages.
        moved: Whether everything is in place, and only leftovers remain.
    """

    staging: str
    old: str
    leaving: tuple[str, ...]
    coming: tuple[str, ...]
    packages: int
    moved: bool = False

    def write(self, folder: InstallationFolder, *, moved: bool = False) -> None:
        """Write the journal, durably."""
        body = {
            "staging": self.staging,
            "old": self.old,
            "leaving": self.leaving,
            "coming": self.coming,
            "packages": self.packages,
            "moved": moved,
        }
        folder.inside.write(folder.journal, json.dumps(body).encode(), sync=True)
        sync_folder(folder.path)


def read_move_journal(folder: InstallationFolder) -> MoveJournal | None:
    """Read the journal of unfinished moves; None if it is missing. Raises HostError if it is damaged."""
    try:
        body = parse_json(folder.inside.read(folder.journal, _LARGEST))
        names = (body["staging"], body["old"])
        leaving, coming = (tuple(map(_checked, body[key])) for key in ("leaving", "coming"))
        if not all(_NAME.fullmatch(name) for name in names):
            raise ValueError("it names folders that npu-rl never makes")
        return MoveJournal(*names, leaving, coming, int(body["packages"]), bool(body["moved"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise HostError(
            "The journal of an interrupted installation can't be read",
            where=str(folder.journal),
            why=str(error),
            hint=f"Make another environment: --venv DIR. What this one had is in {folder.path}.",
        ) from error


def _checked(path: object) -> str:
    if not isinstance(path, str) or not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is not a path below the environment")
    if PurePosixPath(path).parts[0] == FOLDER:
        raise ValueError(f"{path!r} is npu-rl's own")
    return path


def carry_out(folder: InstallationFolder, journal: MoveJournal) -> None:
    """Move everything, under the journal. The folder must be locked.

    Raises:
        OSError: If something can't be moved; then everything is moved back.
    """
    journal.write(folder)
    folder.inside.remove(folder.mark)
    _complete(folder, journal)


def finish(folder: InstallationFolder) -> MoveJournal | None:
    """Complete what was interrupted, if anything was. The folder must be locked.

    Raises:
        OSError: If something can't be moved; then everything is moved back.
    """
    journal = read_move_journal(folder)
    if journal is not None:
        _complete(folder, journal)
    return journal


def _complete(folder: InstallationFolder, journal: MoveJournal) -> None:
    if not journal.moved:
        try:
            _move_all(folder, journal)
        except BaseException:  # an interruption, too, leaves the environment as it was
            _move_back(folder, journal)
            folder.inside.remove(folder.journal)
            raise
        journal.write(folder, moved=True)
    _prune(folder, journal.leaving)
    for name in (journal.staging, journal.old):
        folder.inside.remove(folder.path / name)
    folder.inside.remove(folder.journal)


def _move_all(folder: InstallationFolder, journal: MoveJournal) -> None:
    """Move the old out and the new in, except for moves already done."""
    inside, root = folder.inside, folder.root
    staging, old = folder.path / journal.staging, folder.path / journal.old
    coming = set(journal.coming)
    for path in journal.leaving:
        # What has come in under that name must not go out again.
        waiting = path not in coming or inside.exists(staging / path)
        if waiting and inside.exists(root / path) and not inside.exists(old / path):
            inside.move(root / path, old / path)
    for path in journal.coming:
        if inside.exists(staging / path):
            inside.move(staging / path, root / path)


def _move_back(folder: InstallationFolder, journal: MoveJournal) -> None:
    """Undo the moves in reverse order, through the same states, so that a kill is recovered as usual."""
    inside, root = folder.inside, folder.root
    staging, old = folder.path / journal.staging, folder.path / journal.old
    for path in reversed(journal.coming):
        if not inside.exists(staging / path) and inside.exists(root / path):
            inside.move(root / path, staging / path)
    for path in reversed(journal.leaving):
        if inside.exists(old / path):
            if inside.exists(root / path):  # byte code that a running Python has written meanwhile
                inside.remove(root / path)
            inside.move(old / path, root / path)


def _prune(folder: InstallationFolder, leaving: tuple[str, ...]) -> None:
    """Remove the folders that the moves have left empty."""
    for path in sorted({parent for one in leaving for parent in PurePosixPath(one).parents}, reverse=True):
        place = folder.root / path
        if len(path.parts) < 2 or place.name == "site-packages":
            continue
        if place.is_dir() and not any(place.iterdir()):
            folder.inside.remove(place)
