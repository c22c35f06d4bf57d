"""The lock of a run: a locked file in its folder, which the kernel releases however npu-rl ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import NpuRlError

LOCK = ".lock"


@contextlib.contextmanager
def run_lock(folder: Path, busy: Callable[[], NpuRlError]) -> Iterator[None]:
    """Lock the run of a folder, unless the file system has no locks.

    Args:
        busy: Makes the error that is raised if another process has locked it.
    """
    path = folder / LOCK
    with disk_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):
            try:
                _lock_at_once(handle)
            except BlockingIOError as error:
                raise busy() from error
        yield
    finally:
        os.close(handle)


def has_lock(folder: Path) -> bool:
    """Return whether another process has locked the run of a folder."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


def _lock_at_once(handle: int) -> None:
    """Lock a run's file. Raises BlockingIOError if another process holds the lock longer than a short read takes."""
    for pause in (0.02, 0.05, 0.1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
        else:
            return
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
