"""A run's temporary folder, removed at its end; that of a killed run is removed by the next run of this user."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.disk import alive, disk_errors, remove_tree, take_over

_LOCK = "npu-rl-run"  # in the folder, locked while its npu-rl lives


def folder_of(mark: str, suffix: str = "") -> Path:
    """Return the path of the temporary folder. It is short, since Ray's socket paths may have only 107 bytes."""
    parent = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"nrl-{mark[:16]}{suffix}"


@contextlib.contextmanager
def run_folder(mark: str, suffix: str = "") -> Iterator[Path]:
    """Create the private folder at `folder_of`, and remove it at the end. Raises HostError if it can't be created."""
    folder = folder_of(mark, suffix)
    with disk_errors(folder):
        _remove_abandoned(folder.parent)
        folder.mkdir(mode=0o700)
    try:
        with alive(folder / _LOCK):
            yield folder
    finally:
        remove_tree(folder)


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose npu-rl was killed, and no links."""
    for folder in parent.glob("nrl-*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                handle = take_over(folder / _LOCK)
                if handle is not None:
                    remove_tree(folder)
                    os.close(handle)
