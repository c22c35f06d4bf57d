"""File changes below one folder that follow no symbolic link and overwrite nothing.

A workspace is untrusted, and a link in it must not redirect a rename, a removal or a write. So every parent folder is
opened as a handle without following links (openat(2) with O_NOFOLLOW), and the change is made relative to that handle:
a link created meanwhile has no effect. The folder itself is named by the user and may be a link.

Neither Python nor NFS has renameat2(RENAME_NOREPLACE). So `move` checks first: a target created between the check and
the rename is overwritten, which affects only files of this folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.disk import remove_in
from npu_rl.common.errors import WorkspaceError

# O_PATH needs no permission to list the folder; macOS has none.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_NO_FOLLOW = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW


class LinkOnTheWay(WorkspaceError):
    """A symbolic link is in place of a folder of the workspace."""

    def __init__(self, at: Path) -> None:
        super().__init__(
            f"{at} is a symbolic link",
            why="npu-rl does not follow links inside a workspace: they could lead to files of other people.",
            hint="Replace the link with a folder, or set up another workspace.",
        )


class Confined:
    """Changes below the folder `root`; paths are absolute, as in `root / name`.

    Every method raises LinkOnTheWay for a symbolic link among the parent folders, and OSError with the full path.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, path: Path) -> bool:
        """Return whether a path exists; a broken link does."""
        return self.status(path) is not None

    def is_folder(self, path: Path) -> bool:
        """Return whether a path is a folder, not a link to one."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def status(self, path: Path) -> os.stat_result | None:
        """Return the result of lstat(2); None if the path does not exist."""
        try:
            with self._parent(path) as (folder, name):
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: Path, limit: int) -> bytes:
        """Return the bytes of a regular file. Raises OSError for anything else, and for more than `limit` bytes."""
        with self._parent(path) as (folder, name):
            with os.fdopen(_handle(name, folder, os.O_RDONLY), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(size + 1) if size <= limit else b""  # a read allocates all it requests
        if max(size, len(data)) > limit:
            raise OSError(errno.EFBIG, f"It is larger than {limit / 1e6:.1f} MB", str(path))
        return data

    def handle(self, path: Path, flags: int) -> int:
        """Open a regular file and return its handle, which the caller has to close; `flags` may include O_CREAT.

        Raises:
            OSError: For a link, a pipe or a device, since opening one may block or have side effects.
        """
        with self._parent(path) as (folder, name):
            return _handle(name, folder, flags)

    def make(self, path: Path) -> None:
        """Create a folder and its parents, if they do not exist."""
        with self._opened(path, make=True):
            pass

    def move(self, source: Path, target: Path) -> None:
        """Rename, and create the target's parents. Raises FileExistsError if the target exists."""
        with self._parent(source) as (here, old):
            os.stat(old, dir_fd=here, follow_symlinks=False)
            with self._parent(target, make=True) as (there, new):
                if _exists(new, there):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
                os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)

    def write(self, path: Path, data: bytes, *, sync: bool = False, by: Path | None = None) -> None:
        """Write a file atomically: readers see the old or the new content, never a part.

        Args:
            by: The temporary path, so that a killed write leaves nothing elsewhere; a file that an earlier one left
                there is replaced.
        """
        unseen = by or path.with_name(f".{path.name}.{os.urandom(6).hex()}")
        with self._parent(unseen) as (beside, temporary), self._parent(path) as (folder, name):
            if by is not None:
                remove_in(beside, temporary)
            handle = os.open(temporary, _NEW, 0o666, dir_fd=beside)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())
                os.rename(temporary, name, src_dir_fd=beside, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=beside)

    @contextlib.contextmanager
    def new(self, path: Path) -> Iterator[int]:
        """Create a temporary file and yield its handle; the file is removed at the end."""
        with self._parent(path) as (folder, name):
            handle = os.open(name, _NEW, 0o600, dir_fd=folder)
            try:
                yield handle
            finally:
                os.close(handle)
                os.unlink(name, dir_fd=folder)

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a whole folder; a missing one is ignored."""
        try:
            with self._parent(path) as (folder, name):
                remove_in(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            pass

    @contextlib.contextmanager
    def _parent(self, path: Path, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a handle on the parent folder of a path, and the path's name."""
        with self._opened(path.parent, make=make) as handle:
            try:
                yield handle, path.name
            except OSError as error:
                if not str(error.filename).startswith(os.sep):
                    error.filename, error.filename2 = str(path), None
                raise

    @contextlib.contextmanager
    def _opened(self, path: Path, *, make: bool = False) -> Iterator[int]:
        handle = os.open(self.root, _FOLDER)
        try:
            at = self.root
            for part in path.relative_to(self.root).parts:
                at = at / part
                below = _open_folder(handle, part, at, make)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)


def first_link(folder: Path, depth: int) -> Path | None:
    """Return a symbolic link at `folder` or up to `depth` levels below it, or None."""
    if folder.is_symlink():
        return folder
    if depth < 0 or not folder.is_dir():
        return None
    found = (first_link(path, depth - 1) for path in folder.iterdir())
    return next((link for link in found if link is not None), None)


def _open_folder(handle: int, part: str, at: Path, make: bool) -> int:
    """Open the folder `part`, whose path is `at`, in the folder `handle`."""
    if part == "..":
        raise ValueError(f"{at} leaves the workspace")
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=handle)
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(part, handle):
            raise LinkOnTheWay(at) from error
        error.filename = str(at)
        raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False


def _handle(name: str, folder: int, flags: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        _require_file(name, os.stat(name, dir_fd=folder, follow_symlinks=False))
    handle = os.open(name, flags | _NO_FOLLOW, 0o666, dir_fd=folder)
    try:
        _require_file(name, os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return handle


def _require_file(name: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "Not a regular file", name)
