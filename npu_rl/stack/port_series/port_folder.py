"""The folder of a port: its state, the work tree of the new version, and the fetched history.

The state file is its mark: npu-rl writes only into a folder that has it or was empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from npu_rl.common.confined_changes import Confined
from npu_rl.common.disk import disk_errors, use_of
from npu_rl.common.errors import PatchError, UsageError
from npu_rl.stack.port_series.port_state import PORT_FORMAT, PortState, dump_state, parse_state

STATE, LOCK, TREE, HISTORY = "npu-rl-port.json", "lock", "tree", "history"
USUAL = "npu-rl-port"  # the folder of the ports in a current folder
_LARGEST = 64 * 1024 * 1024
_BEGUN = b'{"port_format": %d, "begun": ""}\n' % PORT_FORMAT


class PortFolder:
    """The folder of one port. Methods raise HostError for errors of the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.state_file = self.root / STATE
        self.tree = self.root / TREE
        self.history = self.root / HISTORY
        self._unseen = self.root / f".{STATE}.new"
        self._inside = Confined(self.root)

    @property
    def is_there(self) -> bool:
        """Return whether the folder is that of a port."""
        return self.state_file.is_file() and not self.state_file.is_symlink()

    def mark(self) -> None:
        """Make the folder. Raises UsageError if it has files that are not a port's."""
        if self.is_there:
            return
        with disk_errors(self.root):
            if os.path.lexists(self.root) and not self._is_free():
                raise UsageError(
                    "The folder is not empty, and has no port",
                    where=str(self.root),
                    hint="Choose another one: --folder DIR",
                )
            self.root.mkdir(parents=True, exist_ok=True)
            self._inside.write(self.state_file, _BEGUN, sync=True, by=self._unseen)

    def _is_free(self) -> bool:
        """Return whether it is a folder without files, except one that a kill before the mark may have left."""
        return self.root.is_dir() and all(path == self._unseen for path in self.root.iterdir())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands out of the folder. Raises PatchError if another command uses it."""
        with use_of(self.root / LOCK).alone() as free:
            if not free:
                raise PatchError("Another command works on this port", where=str(self.root))
            yield

    def read(self) -> PortState | None:
        """Return the state; None if the port was interrupted before it had one. Raises PatchError if it is damaged."""
        with disk_errors(self.state_file):
            data = self._inside.read(self.state_file, _LARGEST)
        return None if data == _BEGUN else parse_state(data, str(self.state_file))

    def write(self, state: PortState) -> PortState:
        """Write the state, whole or not at all, and return it."""
        with disk_errors(self.state_file):
            self._inside.write(self.state_file, dump_state(state), sync=True, by=self._unseen)
        return state

    def remove(self, files: Iterable[str]) -> list[str]:
        """Remove the files that npu-rl wrote, the state last; return the files that are left, by path in the folder.

        Args:
            files: Paths in the work tree.
        """
        with disk_errors(self.root):
            folders: set[Path] = set()
            for name in files:
                self._inside.remove(self.tree / name)
                folders.update(p for p in (self.tree / name).parents if self.tree in p.parents)
            for folder in sorted(folders, key=lambda p: len(p.parts), reverse=True):
                self._remove_empty(folder)
            for path in (self.history, self.tree / ".git"):
                self._inside.remove(path)
            self._remove_empty(self.tree)
            for path in (self.root / LOCK, self._unseen):
                self._inside.remove(path)
            self._inside.remove(self.state_file)
            left = sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if not p.is_dir())
            for folder in (self.root, *([self.root.parent] if self.root.parent.name == USUAL else [])):
                if not any(folder.iterdir()):
                    Confined(folder.parent).remove(folder)
        return left

    def _remove_empty(self, folder: Path) -> None:
        if self._inside.is_folder(folder) and not any(folder.iterdir()):
            self._inside.remove(folder)
