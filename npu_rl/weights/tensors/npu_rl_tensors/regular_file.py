"""Bounded reads of untrusted files, like npu_rl/common/bounded.py, which workers can't import."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from .tensor_error import TensorError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LONGEST_POINTER = 1024  # bytes, by git-lfs's specification


def open_handle(path: Path | str) -> int:
    """Open a regular file for reading, without blocking.

    Raises OSError, and TensorError for a pipe, a device, or a Git LFS pointer in place of the file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(handle)
    kind = status.st_mode
    is_short = status.st_size < _LONGEST_POINTER
    if stat.S_ISREG(kind):
        if not (is_short and os.pread(handle, len(_LFS_POINTER), 0) == _LFS_POINTER):
            return handle
        os.close(handle)
        raise TensorError(
            "The file is a Git LFS pointer, not the weights",
            where=str(path),
            why=f"It has {status.st_size} bytes, which name the file that git-lfs would fetch.",
            hint="Fetch the weights: git lfs pull, in the folder of the clone",
        )
    os.close(handle)
    what = "folder" if stat.S_ISDIR(kind) else "pipe or device"
    raise TensorError("Not a regular file", where=str(path), why=f"It is a {what}.")


def open_regular(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, with its path as `name` for errors. Raises OSError, TensorError."""
    return open(path, "rb", buffering, opener=lambda file, _: open_handle(file))


def read_regular(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file. Raises OSError, TensorError; ValueError for more than `most` bytes."""
    with os.fdopen(open_handle(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"It has {size} bytes of at most {most}.")
        return file.read(most + 1 if size == 0 else size)
