"""Who works in a workspace: a setup has it alone; a command that looks waits for one, and writes nothing to do so."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from npu_rl.disk import disk_errors
from npu_rl.errors import WorkspaceError
from npu_rl.workspace.layout import Layout

Notify = Callable[[str], None]

_LOCK = "busy.lock"
_POLL = 0.05
_ATTEMPTS = 100


@contextlib.contextmanager
def exclusive(layout: Layout, notify: Notify, wait: float = 600.0) -> Iterator[None]:
    """Hold the workspace, made if it isn't there. Works between hosts on a network file system that has locks.

    tell: hears it if another command has to be waited for. wait: for how many seconds at most. Folders that this
    made are removed again if it is left by an error and nothing else came into them.
    Raises WorkspaceError after that time.
    """
    with disk_errors(layout.root):
        created, handle = _acquire(layout, notify, wait)
    try:
        yield
    except BaseException:
        _remove_created(layout, created)
        raise
    finally:
        os.close(handle)  # gives the lock back


@contextlib.contextmanager
def settled(layout: Layout, notify: Notify, wait: float = 600.0) -> Iterator[None]:
    """Wait for a setup that is going on, and keep others out for as long as this lasts. Nothing is written.

    Raises WorkspaceError if the setup takes longer than `wait` seconds, or if it was interrupted.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = layout.inside.handle(layout.hidden / _LOCK, os.O_RDONLY)
        except OSError:  # none has worked here since this was copied, or it is not ours to read
            handle = None
        if handle is not None:
            stack.callback(os.close, handle)
            _wait_for(layout, handle, fcntl.LOCK_SH, notify, wait)
        if layout.is_swapping:
            from npu_rl.workspace.interrupted_setup import interrupted_error

            raise interrupted_error(layout)
        yield


def _acquire(layout: Layout, notify: Notify, wait: float) -> tuple[list[Path], int]:
    """The folders that were made, and a handle on the file that holds the workspace."""
    path = layout.hidden / _LOCK
    for attempt in itertools.count():
        try:
            created = _make(layout)
            handle = layout.inside.handle(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            if attempt == _ATTEMPTS:
                raise
            continue  # another setup was refused and has taken its folders away
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise WorkspaceError(
                    f"{path} is not a regular file", hint="Remove it: npu-rl creates it when it needs it."
                ) from error
            raise
        try:
            _wait_for(layout, handle, fcntl.LOCK_EX, notify, wait)
            now = layout.inside.status(path)
            if now is not None and os.path.samestat(now, os.fstat(handle)):
                return created, handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it was removed while we waited for it: the lock of nothing
    raise AssertionError


def _make(layout: Layout) -> list[Path]:
    """Make the workspace's folder and `.npu-rl`; those that were made, the outer ones first."""
    missing = [path for path in (layout.root, *layout.root.parents) if not path.exists()]
    created = []
    for path in (*reversed(missing), layout.hidden):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            created.append(path)
    layout.inside.make(layout.hidden)  # raises if what is there is no folder
    return created


def _remove_created(layout: Layout, created: list[Path]) -> None:
    if layout.hidden not in created:
        return
    with contextlib.suppress(OSError):
        if [path.name for path in layout.hidden.iterdir()] == [_LOCK]:
            layout.inside.remove(layout.hidden / _LOCK)
        for path in reversed(created):
            path.rmdir()


def _wait_for(layout: Layout, handle: int, kind: int, notify: Notify, wait: float) -> None:
    end = time.monotonic() + wait
    notified = False
    while True:
        try:
            return fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError:
            if kind == fcntl.LOCK_EX:
                notify(
                    f"note: {layout.root} is on a file system without support for locks; run only one setup at a time."
                )
            return None
        if not notified:
            notify(f"Another npu-rl command is using {layout.root}; waiting for it to finish.")
            notified = True
        if time.monotonic() > end:
            raise WorkspaceError(
                "Another npu-rl command is using this workspace",
                where=str(layout.root),
                hint="Wait until it has finished, then run again.",
            )
        time.sleep(_POLL)
