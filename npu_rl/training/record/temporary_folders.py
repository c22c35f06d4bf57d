"""A run's temporary folders. They are named after its mark, so that a killed run's can be found and removed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.disk import disk_errors, remove_tree

_MARK = "npu-rl-run"  # a file that holds the mark of the run the folder belongs to
_ID = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{16})?")


def folder_of(run_id: str, suffix: str = "") -> Path:
    """Return the path of the run's temporary folder. It is short, since Ray's socket paths may have only 107 bytes."""
    return _parents()[0] / f"{_prefix(run_id)}{suffix}"


@contextlib.contextmanager
def run_folder(run_id: str, suffix: str = "") -> Iterator[Path]:
    """Create the run's private folder at `folder_of`, and remove it at the end.

    Raises:
        HostError: If it can't be created; `remove_remaining` has to remove that of a killed run first.
    """
    folder = folder_of(run_id, suffix)
    with disk_errors(folder):
        folder.mkdir(mode=0o700)
    try:
        (folder / _MARK).write_text(run_id, encoding="ascii")
        yield folder
    finally:
        remove_tree(folder)


def remaining_folders(run_id: str) -> list[Path]:
    """Return the run's remaining temporary folders, excluding links and folders of other users or runs."""
    if not _ID.fullmatch(run_id):
        return []
    found = {folder for base in _parents() for folder in base.glob(f"{_prefix(run_id)}*")}
    return sorted(folder for folder in found if _belongs_to(folder, run_id))


def remove_remaining(run_id: str) -> None:
    """Remove the run's remaining temporary folders. No process of the run may be alive."""
    for folder in remaining_folders(run_id):
        remove_tree(folder)


def _prefix(run_id: str) -> str:
    """Return a name that differs between a run and a copy of it, which has the same id."""
    return f"nrl-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def _parents() -> list[Path]:
    """Return the possible parent folders, starting with the one for new folders."""
    named = Path(tempfile.gettempdir())
    return [Path("/tmp"), named] if os.access("/tmp", os.W_OK) else [named, Path("/tmp")]


def _belongs_to(folder: Path, run_id: str) -> bool:
    """Return whether a folder is the run's, by owner and mark, since any user could create the name."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        handle = os.open(folder / _MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return _is_empty(folder)  # npu-rl was killed before it wrote the mark
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        return file.read(64) == run_id.encode()


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False
