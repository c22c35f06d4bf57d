"""File-system operations: errors with hints, removal, atomic writes, and lock files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common.environment_variables import STORE
from npu_rl.common.errors import HostError, UsageError

_FREE = "Free some space on that disk, then run again."
_ELSEWHERE = "put the store on another disk: export NPU_RL_STORE=/DIR"
_OWNER = "Check who owns the folder, or choose another."
_MORE_FILES = "Raise the limit: ulimit -n 1024"
# ENOTCONN: the client of a FUSE file system died or lost its server. EBADFD (Linux only): the server restarted
# and forgot our locks.
_GONE = (errno.ENOTCONN, getattr(errno, "EBADFD", errno.ENOTCONN))
_REASONS = {
    errno.ENOSPC: ("The disk is full", _FREE),
    errno.EFBIG: ("A file is too large for this disk, or for `ulimit -f`", "Choose another folder."),
    errno.EOVERFLOW: ("A file has no end, or grows while it is read", "Run again once nothing writes to it."),
    errno.EDQUOT: ("The disk quota is used up", "Free some space, then run again."),
    errno.EACCES: ("No permission", _OWNER),
    errno.EPERM: ("No permission", _OWNER),
    errno.EROFS: ("The file system is read-only", "Choose another folder, as with --workspace DIR."),
    errno.ENOTDIR: ("A file exists where a folder is needed", "Choose another folder."),
    errno.EEXIST: ("A file exists where a folder is needed", "Choose another folder."),
    errno.ELOOP: ("A path has a loop of symbolic links", "Choose another folder."),
    errno.ENAMETOOLONG: ("A path is too long for this file system", "Choose a folder with a shorter path."),
    errno.EMFILE: ("Too many files are open", _MORE_FILES),
    errno.ENFILE: ("Too many files are open", _MORE_FILES),
    errno.ENOLCK: ("The file system does not support locks", "Choose a folder on a local disk."),
    errno.ENXIO: ("A pipe or device exists where a file is needed", "Choose another path."),
    errno.EISDIR: ("A folder exists where a file is needed", "Choose another path."),
    errno.ENOENT: ("A file or folder is missing", "Check the path: another program may have removed it."),
    errno.EIO: ("The disk failed", "Check the system log, or choose another disk."),
    **dict.fromkeys(
        (errno.ESTALE, *_GONE), ("The file server failed", "Run again, or choose a folder on a local disk.")
    ),
}


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn errors of the disk into HostError with a hint."""
    try:
        yield
    except OSError as error:
        known = _REASONS.get(error.errno or 0)
        # A program that is missing, or a path below a current folder that is gone, is named by who started it.
        relative = isinstance(error, FileNotFoundError) and not str(error.filename or "").startswith("/")
        if known is None or relative:
            raise
        what, hint = known
        where = str(error.filename or place)
        hint = store_hint(error.errno or 0, where, str(place)) or hint
        raise HostError(what, where=where, why=error.strerror, hint=hint) from error


def store_hint(number: int, *places: str) -> str | None:
    """Return what helps against an error of the disk with this number if one of the places is in the store."""
    named = os.environ.get(STORE.name)
    part = os.path.normpath(named.removeprefix("~")) if named else "npu-rl/store"
    if not any(part in place for place in places):
        return None
    return {
        errno.ENOSPC: f"Free some space (`npu-rl store gc` may help), or {_ELSEWHERE}",
        errno.EDQUOT: f"Free some space (`npu-rl store gc` may help), or {_ELSEWHERE}",
        errno.EROFS: f"P{_ELSEWHERE[1:]}",
        errno.EACCES: f"Check who owns the folder, or {_ELSEWHERE}",
        errno.EPERM: f"Check who owns the folder, or {_ELSEWHERE}",
    }.get(number)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def remove_tree(path: Path) -> None:
    """Remove a folder or file regardless of its permissions; a missing or undeletable one is ignored.

    Symbolic links in it are removed, not followed. A git process whose parent was killed may still write into it, so
    the removal is retried.
    """
    keyword: Any = {"onexc" if sys.version_info >= (3, 12) else "onerror": _give_access}
    for attempt in range(50):
        try:
            if is_folder(path):
                shutil.rmtree(path, **keyword)
            else:
                path.unlink(missing_ok=True)
        except RecursionError:
            return
        except OSError as error:
            if error.errno in (*_GONE, errno.EACCES, errno.EPERM, errno.EROFS):
                return  # nothing there can be reached or changed; the next command tries again
        if not os.path.lexists(path):
            return
        time.sleep(0.02 * min(attempt, 10))


def _give_access(_call: object, name: str, raised: Any) -> None:
    """Give the owner access to what `rmtree` could not remove, for the next attempt. Raises the error if he has it."""
    error = raised if isinstance(raised, BaseException) else raised[1]
    if isinstance(error, FileNotFoundError):
        return
    closed = [
        folder
        for folder in (Path(name).parent, Path(name))
        if is_folder(folder) and folder.stat().st_mode & 0o700 != 0o700
    ]
    if not isinstance(error, PermissionError) or not closed:
        raise error
    for folder in closed:
        folder.chmod(0o700)


def move_new(source: Path, target: Path) -> None:
    """Rename a path, and create the target's parents. Raises FileExistsError if the target exists.

    Neither Python nor NFS has renameat2(RENAME_NOREPLACE): a file created between the check and the rename is lost.
    """
    source.lstat()
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    source.rename(target)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def named_file(path: Path) -> Path:
    """Return the file behind an output path, with symbolic links resolved; it need not exist.

    Raises:
        UsageError: For anything but a regular file, since as root a rename would replace /dev/null itself, and
            for the file that this command's output is redirected to, since the rename would replace it.
    """

    def refused(what: str, hint: str) -> UsageError:
        return UsageError(what, where=str(path), hint=hint)

    with disk_errors(path):
        target = Path(os.path.realpath(path))
        try:
            found = path.stat()  # not of `target`: links in /proc lead where no path does
        except FileNotFoundError:
            if target.parent.is_dir():
                return target
            raise UsageError(
                "The folder does not exist",
                where=str(target.parent),
                hint="Create it, or choose another path.",
            ) from None
        if stat.S_ISDIR(found.st_mode):
            raise refused("The output path is a folder", "Pass the path of a file.")
        if not stat.S_ISREG(found.st_mode):
            hint = "Pass the path of a file. To print the result, write a file and run `cat FILE`."
            raise refused("The output path is a device, pipe or socket", hint)
        for stream in (1, 2):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(stream), found):
                    what = "The output path is the file that this command's messages are redirected to"
                    raise refused(what, "Pass the path of another file.")
    return target


def write_named(path: Path, data: bytes) -> None:
    """Write an output file atomically; links stay links, and a file keeps its permissions.

    Raises UsageError as `named_file` does, HostError for errors of the disk.
    """
    target = named_file(path)
    with disk_errors(target):
        write_atomically(target, data, sync=True, like=target)


def write_atomically(
    path: Path, data: bytes, *, folder: Path | None = None, sync: bool = False, like: Path | None = None
) -> None:
    """Write a file atomically: readers see the old or the new content, never a part.

    Args:
        folder: Where the temporary file is written.
        like: A file whose mode and owner are copied, if it exists.
    """
    temporary = (folder or path.parent) / f".{path.name[:60]}.{os.urandom(6).hex()}"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
            if like is not None:
                _take_after(file.fileno(), like)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _take_after(handle: int, like: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        old = like.stat()
        with contextlib.suppress(PermissionError):  # only root may give a file away
            os.fchown(handle, old.st_uid, old.st_gid)
        os.fchmod(handle, stat.S_IMODE(old.st_mode))


def private(path: str, flags: int, mode: int = 0o600) -> int:
    """Open regular files with mode 600, without following links or waiting for a pipe; an `opener` for `open`."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.ENXIO, "Not a regular file", path)


@contextlib.contextmanager
def alive(lock_file: Path) -> Iterator[None]:
    """Hold a lock file while this process lives, however it ends.

    The file gets its name only once it is locked, so no other process sees it unlocked. On a file system without locks
    there is no file.
    """
    handle = _create_locked(lock_file)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            lock_file.unlink()
        os.close(handle)


def _create_locked(lock_file: Path) -> int:
    unseen = lock_file.with_name(f"new-{os.urandom(8).hex()}")
    handle = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        if _lock(handle, fcntl.LOCK_EX):
            unseen.rename(lock_file)
        else:
            unseen.unlink()
    except BaseException:
        os.close(handle)
        raise
    return handle


def take_over(lock_file: Path) -> int | None:
    """Lock the lock file of a process that has ended; return its handle, to be closed, or None if it still runs.

    None also for any other file: lock files are regular and empty, and have one name.
    """
    try:
        handle = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    found = os.fstat(handle)
    ours = stat.S_ISREG(found.st_mode) and found.st_size == 0 and found.st_nlink == 1
    if ours and _lock(handle, fcntl.LOCK_EX):
        return handle
    os.close(handle)
    return None


def _lock(handle: int, kind: int) -> bool | None:
    """Try to lock: True if it succeeded, False if another process has the lock, None without support for locks."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class LockUse:
    """Shared use of a folder by many processes, with exclusive use by one."""

    def __init__(self, lock_file: Path) -> None:
        self.begun = False
        self._beginning = threading.Lock()
        self._handle: int | None = None
        with contextlib.suppress(OSError):  # a read-only folder can be used, and no process can clear it
            self._handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)

    def begin(self) -> None:
        """Use the folder together with other processes until this one ends; wait while another uses it exclusively."""
        with self._beginning:  # another thread waits here until this one has the lock
            if not self.begun and self._handle is not None:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(self._handle, fcntl.LOCK_SH)
                self.begun = True

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool | None]:
        """Try to use the folder exclusively; yields whether no other process uses it, None without locks."""
        if self._handle is None:
            yield None
            return
        try:
            yield _lock(self._handle, fcntl.LOCK_EX)
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_SH if self.begun else fcntl.LOCK_UN)


@cache
def use_of(lock_file: Path) -> LockUse:
    """Return this process's use of the folder with this lock file."""
    return LockUse(lock_file)
