"""Changes of a workspace's files. None overwrites a file but by a new version of itself."""

from __future__ import annotations

import os
from pathlib import Path

from npu_rl.common.bounded import read_file
from npu_rl.common.disk import move_new, remove_tree, write_atomically


class WorkspaceFiles:
    """Changes of a workspace's files, whose paths are absolute; a link is changed itself, not what it leads to."""

    def exists(self, path: Path) -> bool:
        """Return whether a path exists; a broken link does."""
        return os.path.lexists(path)

    def is_folder(self, path: Path) -> bool:
        """Return whether a path is a folder, not a link to one."""
        return path.is_dir() and not path.is_symlink()

    def read(self, path: Path, limit: int) -> bytes:
        """Return the bytes of a regular file. Raises OSError, or ValueError for more than `limit` bytes."""
        return read_file(path, limit)

    def make(self, path: Path) -> None:
        """Create a folder and its parents, if they do not exist."""
        path.mkdir(parents=True, exist_ok=True)

    def move(self, source: Path, target: Path) -> None:
        """Rename, and create the target's parents. Raises FileExistsError if the target exists."""
        move_new(source, target)

    def write(self, path: Path, data: bytes, *, sync: bool = False) -> None:
        """Write a file atomically."""
        write_atomically(path, data, sync=sync)

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a whole folder; a missing one is ignored."""
        remove_tree(path)
