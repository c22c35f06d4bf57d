"""Where things are in a workspace."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from npu_rl.workspace.confined_changes import Confined


@dataclass(frozen=True)
class Layout:
    """Paths of one workspace. `root` is absolute."""

    root: Path

    @property
    def inside(self) -> Confined:
        """What changes the workspace goes through this: it follows no link."""
        return Confined(self.root)

    @property
    def hidden(self) -> Path:
        return self.root / ".npu-rl"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def git(self) -> Path:
        """Objects and repositories of the workspace's own: it survives the store."""
        return self.hidden / "git"

    @property
    def lock(self) -> Path:
        return self.hidden / "lock.json"

    @property
    def receipt(self) -> Path:
        return self.hidden / "receipt.json"

    @property
    def stat(self) -> Path:
        """What `stat` said of each file when its content was last proven."""
        return self.hidden / "stat.json"

    @property
    def journal(self) -> Path:
        return self.hidden / "journal.json"

    @property
    def kept(self) -> Path:
        """Local edits that `--discard` put aside."""
        return self.hidden / "kept"

    def free_kept_name(self) -> str:
        """A name in `kept` that is not taken: the time, and a number if it must be."""
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
        names = (f"{stamp}.{count}" if count else stamp for count in itertools.count())
        return next(name for name in names if not os.path.lexists(self.kept / name))

    @property
    def is_swapping(self) -> bool:
        """Whether a setup is putting a new workspace in place, or was interrupted while it did."""
        return os.path.lexists(self.journal)

    @property
    def is_workspace(self) -> bool:
        return self.receipt.is_file() and self.lock.is_file()


# What a setup replaces, in the order it is moved. All on one file system, all by rename.
# Byte code goes with its sources: Python tells the two apart by whole seconds and sizes only.
MOVED = (
    "code",
    "src",
    "activate",
    ".npu-rl/git",
    ".npu-rl/lock.json",
    ".npu-rl/receipt.json",
    ".npu-rl/stat.json",
    ".npu-rl/pycache",
)


def repository_name(root: str) -> str:
    """The folder of a root's git repository under `.npu-rl/git`."""
    return root.replace("/", "-")


DEFAULT_NAME = "npu-rl-workspace"
