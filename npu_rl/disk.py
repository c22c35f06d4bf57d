"""What a disk can do to a program, and what to do about it: errors, removal, whole writes, who is alive."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from npu_rl.errors import HostError, UsageError

_FREE = "Free some space (`npu-rl store gc` may help), then run again."
_OWNER = "Check who owns the folder, or choose another."
_MORE_FILES = "Raise the limit: ulimit -n 1024"
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
    errno.ENOTDIR: ("A file exists where a folder is needed", "Choose another folder."),
    errno.EEXIST: ("A file exists where a folder is needed", "Choose another folder."),
    errno.ELOOP: ("A path has a loop of symbolic links", "Choose another folder."),
    errno.ENAMETOOLONG: ("A path is too long for this file system", "Choose a folder with a shorter path."),
    errno.EMFILE: ("Too many files are open", _MORE_FILES),
    errno.ENFILE: ("Too many files are open", _MORE_FILES),
    errno.ENOLCK: ("The file system does not support locks", "Choose a folder on a local disk."),
    errno.ENXIO: ("A pipe or device exists where a file is needed", "Choose another path."),
    errno.EIO: ("The disk failed", "Check the system log, or choose another disk."),
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


def require_open_files(least: int = 32) -> None:
    """Raise HostError where so few files may be open that Python fails to import what it has."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < least:
        raise HostError(
            f"Only {limit} files may be open at once", why=f"npu-rl needs {least}.", hint=_MORE_FILES
        )


def remove_tree(path: Path) -> None:
    """Remove a folder or file, whatever its permissions; gone already is fine, and so is what can't be removed.

    Links in it are removed, not followed; those on the way to it are followed.
    """
    try:
        folder = os.open(path.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        remove_in(folder, path.name)
    finally:
        os.close(folder)


def remove_in(folder: int, name: str) -> None:
    """`remove_tree` of a name in an opened folder.

    A git process whose parent was killed may still be writing into it: try until it is gone.
    """
    for attempt in range(50):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return
        try:
            if stat.S_ISDIR(status.st_mode):
                _remove_folder(folder, name)
            else:
                os.unlink(name, dir_fd=folder)
            return
        except OSError as error:
            if error.errno in (*_GONE, errno.EACCES, errno.EPERM, errno.EROFS):
                return  # nothing there can be reached or changed; the next command tries again
        time.sleep(0.02 * min(attempt + 1, 10))


def _remove_folder(folder: int, name: str) -> None:
    """Through handles, so that no link is followed. Folders two levels down are moved up to the first: however deep
    they are nested, it takes no recursion and three handles."""
    top = _enter(folder, name)
    try:
        while children := _emptied(top):
            for child in children:
                handle = _enter(top, child)
                try:
                    for below in _emptied(handle):
                        _let_in(handle, below)  # a folder that is moved has to be writable itself
                        os.rename(below, os.urandom(8).hex(), src_dir_fd=handle, dst_dir_fd=top)
                finally:
                    os.close(handle)
                os.rmdir(child, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=folder)


def _emptied(folder: int) -> list[str]:
    """Remove everything in it but the folders, which are returned."""
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=folder)
    return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


def _enter(folder: int, name: str) -> int:
    _let_in(folder, name)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _let_in(folder: int, name: str) -> None:
    """Let the owner into a folder."""
    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=folder)


def named_file(path: Path) -> Path:
    """The file that writing to a path a person named would write: behind symbolic links, there or not yet.

    Raises UsageError for what is no regular file: as root, a rename over /dev/null would replace the device.
    Also for a file that this command's own output goes to: the rename would part the two.
    """
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
            raise UsageError("The output path is a folder", where=str(path), hint="Pass the path of a file.")
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(
                "The output path is a device, pipe or socket",
                where=str(path),
                hint="Pass the path of a file. To print the result, write a file and run `cat FILE`.",
            )
        for stream in (1, 2):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(stream), found):
                    raise UsageError(
                        "The output path is the file that this command's messages are redirected to",
                        where=str(path),
                        hint="Pass the path of another file.",
                    )
    return target


def write_named(path: Path, data: bytes) -> None:
    """Write a file that a person named, atomically; links stay links, and a file keeps its permissions.

    Raises UsageError as `named_file` does, HostError if the disk says no.
    """
    target = named_file(path)
    with disk_errors(target):
        write_atomically(target, data, sync=True, like=target)


def write_atomically(
    path: Path, data: bytes, *, folder: Path | None = None, sync: bool = False, like: Path | None = None
) -> None:
    """Write a file of ours so that it is either the old one or the new one, never a part.

    folder: where it is written before it is moved. like: a file whose mode and owner it gets, if it is there.
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


def private(path: str, flags: int) -> int:
    """An opener for `open`: a file that it makes is the owner's alone, and a link in its place is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


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


class LockUse:
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


_uses: dict[Path, LockUse] = {}


def use_of(lock_file: Path) -> LockUse:
    """This process's use of a folder: the one that holds the lock file."""
    if lock_file not in _uses:
        _uses[lock_file] = LockUse(lock_file)
    return _uses[lock_file]
