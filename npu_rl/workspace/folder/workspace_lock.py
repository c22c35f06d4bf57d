"""Locking of a workspace, exclusive for setup while other commands wait without writing, and interrupted setups.

`setup` finishes an interrupted one; every other command reports it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.disk import disk_errors, private
from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder import swap
from npu_rl.workspace.folder.built_products import stop_killed_builds
from npu_rl.workspace.folder.receipt import read_receipt, setup_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

if TYPE_CHECKING:
    from npu_rl.stack.sources.progress import Notify

_LOCK = "busy.lock"
_POLL = 0.05
_ATTEMPTS = 100


@contextlib.contextmanager
def exclusive(paths: WorkspacePaths, notify: Notify, wait: float = 600.0) -> Iterator[None]:
    """Lock the workspace exclusively, creating it if necessary. Works across hosts if the file system has locks.

    After an error, folders created here are removed if they are empty.

    Args:
        notify: Called if another command has to be waited for.
        wait: Maximum time in seconds.

    Raises:
        WorkspaceError: If the workspace is not free within `wait` seconds.
    """
    with disk_errors(paths.root):
        created, handle = _acquire(paths, notify, wait)
    try:
        yield
    except BaseException:
        _remove_created(paths, created)
        raise
    finally:
        os.close(handle)  # gives the lock back


@contextlib.contextmanager
def settled(paths: WorkspacePaths, notify: Notify, wait: float = 600.0) -> Iterator[None]:
    """Wait for a running setup, and block new ones meanwhile, without writing.

    Raises:
        WorkspaceError: If the setup takes longer than `wait` seconds, or if it was interrupted.
    """
    with contextlib.ExitStack() as stack:
        handle = _existing_lock(paths)
        if handle is None and paths.is_swapping:  # by a setup that has made its lock since
            handle = _existing_lock(paths)
        if handle is not None:
            stack.callback(os.close, handle)
            _wait_for(paths, handle, fcntl.LOCK_SH, notify, wait)
        if paths.is_swapping:
            raise interrupted_error(paths)
        yield


def _existing_lock(paths: WorkspacePaths) -> int | None:
    try:
        return private(str(paths.hidden / _LOCK), os.O_RDONLY)
    except OSError:  # none has worked here since this was copied, or it is not ours to read
        return None


def _acquire(paths: WorkspacePaths, notify: Notify, wait: float) -> tuple[list[Path], int]:
    """Return the created folders, and the handle of the lock file."""
    path = paths.hidden / _LOCK
    for attempt in itertools.count():
        try:
            created = _make(paths)
            handle = private(str(path), os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            if attempt == _ATTEMPTS:
                raise
            continue  # another setup was refused and has taken its folders away
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ELOOP, errno.EISDIR):
                raise WorkspaceError(
                    f"{path} is not a regular file", hint="Remove it: npu-rl creates it when it needs it."
                ) from error
            raise
        try:
            _wait_for(paths, handle, fcntl.LOCK_EX, notify, wait)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(handle)):
                    return created, handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it was removed while we waited for it: the lock of nothing
    raise AssertionError


def _make(paths: WorkspacePaths) -> list[Path]:
    """Create the workspace's folder and `.npu-rl`; return the created folders, outer ones first."""
    missing = [path for path in (paths.root, *paths.root.parents) if not path.exists()]
    created = []
    for path in (*reversed(missing), paths.hidden):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            created.append(path)
    return created


def _remove_created(paths: WorkspacePaths, created: list[Path]) -> None:
    if paths.hidden not in created:
        return
    with contextlib.suppress(OSError):
        if [path.name for path in paths.hidden.iterdir()] == [_LOCK]:
            (paths.hidden / _LOCK).unlink()
        for path in reversed(created):
            path.rmdir()


def _wait_for(paths: WorkspacePaths, handle: int, kind: int, notify: Notify, wait: float) -> None:
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
                    f"note: {paths.root} is on a file system without support for locks; run only one setup at a time."
                )
            return None
        if not notified:
            notify(f"Another npu-rl command is using {paths.root}; waiting for it to finish.")
            notified = True
        if time.monotonic() > end:
            raise WorkspaceError(
                "Another npu-rl command is using this workspace",
                where=str(paths.root),
                hint="Wait until it has finished, then run the command again.",
            )
        time.sleep(_POLL)


def recover_interrupted(paths: WorkspacePaths, notify: Callable[[str], None]) -> None:
    """Finish an interrupted swap, if there is one, and remove leftovers of killed commands.

    The workspace must be locked. Raises WorkspaceError, HostError.
    """
    stop_killed_builds(paths.hidden)
    interrupted, kept = swap.finish(paths, edit_keeper(paths))
    if interrupted:
        notify("Finished an interrupted setup.")
        if kept:
            notify(f"Local changes were moved to {kept}")
    swap.sweep(paths)


def edit_keeper(paths: WorkspacePaths) -> Callable[[Path, Path], None]:
    """Return a function that moves local changes aside before the old parts are removed.

    These are the changes that --discard covers, and those made during the setup. They are moved after the swap, under
    the journal, so a setup that fails moves nothing.
    """

    def keep(old: Path, target: Path) -> None:
        from npu_rl.workspace.folder import local_edits  # a first setup has nothing to keep

        try:
            coming = read_receipt(paths).files
        except WorkspaceError:
            coming = {}  # damaged meanwhile, so no file of the old workspace is known to be in the new one
        local_edits.move_edits(old, local_edits.find_edits(old, coming), target)

    return keep


def interrupted_error(paths: WorkspacePaths) -> WorkspaceError:
    """Return the error that read-only commands raise for a workspace with an unfinished swap."""
    journal = swap.read_journal(paths)
    return WorkspaceError(
        "The setup of this workspace was interrupted",
        where=str(paths.journal),
        why="It may contain parts of the old workspace and of the new one; only `setup` can finish it.",
        hint=f"Finish it: {setup_hint(paths, _setup(paths, journal) if journal else None)}",
    )


def _setup(paths: WorkspacePaths, journal: swap.Journal) -> Mapping[str, Any] | None:
    """Return the `setup` part of the receipt; None without a readable receipt."""
    for home in (journal.staging, paths.root):
        try:
            return read_receipt(WorkspacePaths(home)).setup
        except WorkspaceError:
            continue
    return None
