"""A private log of this user, bounded in size, in the user's state folder.

A log is only a help: if it can't be written, nothing else fails. The folder and its files must belong to this user and
must not be links, so that nobody can redirect what is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from itertools import pairwise
from pathlib import Path

LARGEST = 1_000_000  # bytes of one file
KEPT = 5  # files, the current one among them
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def state_folder() -> Path | None:
    """Return $XDG_STATE_HOME/npu-rl, else ~/.local/state/npu-rl; None if this user has no home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state, "npu-rl")
    home = os.environ.get("HOME", "")
    return Path(home, ".local/state/npu-rl") if home.startswith("/") else None


class PrivateLog:
    """Lines at the end of `folder/name`; `name.1` to `name.4` are older ones."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._folder: int | None = None
        self._file: int | None = None
        self._refused = False

    def write(self, text: str) -> bool:
        """Append the text in one write; return whether that succeeded."""
        data = text.encode("utf-8", "backslashreplace")
        if self._refused or len(data) > LARGEST:
            return False
        try:
            os.write(self._open(len(data)), data)
        except (OSError, ValueError):  # ValueError: a NUL in the folder's name
            self.close()
            self._refused = True
            return False
        return True

    def close(self) -> None:
        """Close the files."""
        for handle in (self._file, self._folder):
            if handle is not None:
                with contextlib.suppress(OSError):
                    os.close(handle)
        self._file = self._folder = None

    def _open(self, size: int) -> int:
        """Return the current log file with room for `size` bytes, reopened if another process has rotated it."""
        if self._folder is None:
            self._folder = own_folder(self.path.parent)
        if self._file is not None and self._is_current(self._file) and _room(self._file, size):
            return self._file
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            self._replace(self._own_file())
            assert self._file is not None
            if not _room(self._file, size):
                self._rotate()
                self._replace(self._own_file())
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)
        return self._file

    def _replace(self, handle: int) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = handle

    def _own_file(self) -> int:
        handle = os.open(self.path.name, _OPEN, 0o600, dir_fd=self._folder)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            os.close(handle)
            raise PermissionError(f"{self.path} is not a private file of this user")
        os.fchmod(handle, 0o600)
        return handle

    def _is_current(self, handle: int) -> bool:
        try:
            named = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(handle))

    def _rotate(self) -> None:
        names = [self.path.name, *(f"{self.path.name}.{number}" for number in range(1, KEPT))]
        for newer, older in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _room(handle: int, size: int) -> bool:
    return os.fstat(handle).st_size + size <= LARGEST


def own_folder(folder: Path) -> int:
    """Open the folder, creating it if its nearest parent is this user's. Raises OSError unless it is private."""
    if not os.path.lexists(folder):
        above = folder.parent
        while not os.path.lexists(above):
            above = above.parent
        if above.stat().st_uid != os.geteuid():  # such as the home of another user, under sudo
            raise PermissionError(f"{above} belongs to another user")
        os.makedirs(folder, mode=0o700, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(handle)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(handle)
        raise PermissionError(f"{folder} is not private to this user")
    return handle
