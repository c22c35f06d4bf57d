"""What a disk can do to a program, and what to do about it: errors, removal, whole writes, who is alive."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from npu_rl.errors import HostError

_FREE = "Free some space (`npu-rl store gc` may help), then run again."
_OWNER = "Check who owns the folder, or choose another."
# ENOTCONN: the client of a FUSE file system died or lost its server. EBADFD (Linux only): the server began anew
# and forgot our locks.
_GONE = (errno.ENOTCONN, getattr(errno, "EBADFD", errno.ENOTCONN))
_REASONS = {
    errno.ENOSPC: ("The disk is full", _FREE),
    errno.EFBIG: ("A file is too large for this disk, or for `ulimit -f`", "Choose another folder."),
    errno.EDQUOT: ("The disk quota is used up", "Free some space, then run again."),
    errno.EACCES: ("No permission", _OWNER),
    errno.EPERM: ("No permission", _OWNER),
    errno.EROFS: ("The file system is read-only", "Choose another folder."),
    errno.ENOTDIR: ("A file is where a folder is needed", "Choose another folder."),
    errno.EEXIST: ("A file is where a folder is needed", "Choose another folder."),
    errno.ELOOP: ("A symbolic link leads in a circle", "Choose another folder."),
    errno.ENAMETOOLONG: ("A path is too long for this file system", "Choose a folder with a shorter path."),
    errno.EIO: ("The disk failed", "Look at the system's log, or choose another disk."),
    **dict.fromkeys(
        (errno.ESTALE, *_GONE), ("The file server failed", "Run again, or choose a folder on a local disk.")
    ),
}


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn what a disk can say into an error a person can act on."""
    try:
        yield
    except OSError as error:
        known = _REASONS.get(error.errno or 0)
        if known is None:
            raise
        what, hint = known
        raise HostError(what, where=str(error.filename or place), why=error.strerror, hint=hint) from error


def remove_tree(path: Path) -> None:
    """Remove a folder or file, whatever its permissions; gone already is fine, and so is what can't be removed.

    A git process whose parent was killed may still be writing into it: try until it is gone.
    """
    import shutil  # a verify removes nothing

    opened = False
    for attempt in range(50):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            return
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
        except OSError as error:
            if error.errno in _GONE:
                return  # nothing there can be reached; the next command removes it
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                if opened or path.is_symlink() or not path.is_dir():
                    return
                _open_up(path)
                opened = True
                continue
        time.sleep(0.02 * min(attempt + 1, 10))


def _open_up(path: Path) -> None:
    """Let the owner into a folder and all below it."""
    folders = [path]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):
            folder.chmod(0o700)
            with os.scandir(folder) as entries:
                folders += [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]


def write_atomically(path: Path, data: bytes, *, folder: Path | None = None, sync: bool = False) -> None:
    """Write a file so that it is either the old one or the new one, never a part."""
    temporary = (folder or path.parent) / f".{path.name[:60]}.{os.urandom(6).hex()}"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def alive(lock_file: Path) -> Iterator[None]:
    """Hold a lock file as a sign of life: it ends with this process, however that ends.

    The file appears under its name only when it is locked, so nobody ever sees it free while its maker lives.
    On a file system without locks there is no file.
    """
    unseen = lock_file.with_name(f"new-{os.urandom(8).hex()}")
    handle = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if _lock(handle, fcntl.LOCK_EX):
            unseen.rename(lock_file)
        else:
            unseen.unlink()
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            lock_file.unlink()
        os.close(handle)


def take_over(lock_file: Path) -> int | None:
    """A handle on the lock file of a process that is no more (close it when done); None if it lives."""
    try:
        handle = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    if _lock(handle, fcntl.LOCK_EX):
        return handle
    os.close(handle)
    return None


def _lock(handle: int, kind: int) -> bool | None:
    """True: taken. False: another has it. None: this file system has no locks."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class Use:
    """A folder that many processes use at the same time, and one may want for itself (see `use_of`)."""

    def __init__(self, lock_file: Path) -> None:
        self.begun = False
        self._handle: int | None = None
        with contextlib.suppress(OSError):  # a read-only folder can be used, and nobody will clear it
            self._handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)

    def begin(self) -> None:
        """Use it together with others, until this process ends. Waits while another has it alone."""
        if not self.begun and self._handle is not None:
            self.begun = True
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._handle, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process uses it; while this lasts, none begins to."""
        if self._handle is None:
            yield True
            return
        try:
            yield _lock(self._handle, fcntl.LOCK_EX) is not False
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_SH if self.begun else fcntl.LOCK_UN)


_uses: dict[Path, Use] = {}


def use_of(lock_file: Path) -> Use:
    """This process's use of a folder: the one that holds the lock file."""
    if lock_file not in _uses:
        _uses[lock_file] = Use(lock_file)
    return _uses[lock_file]
