"""Paths in a workspace, and the validation of its own, which goes into PYTHONPATH, scripts and messages."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import WorkspaceError


@dataclass(frozen=True)
class WorkspacePaths:
    """Paths of one workspace, whose `root` is absolute."""

    root: Path

    @property
    def hidden(self) -> Path:
        """Folder of npu-rl's own files."""
        return self.root / ".npu-rl"

    @property
    def code(self) -> Path:
        """The code tree."""
        return self.root / "code"

    @property
    def git(self) -> Path:
        """The workspace's own objects and repositories, independent of the store."""
        return self.hidden / "git"

    @property
    def lock(self) -> Path:
        """The lock the workspace was set up from."""
        return self.hidden / "lock.json"

    @property
    def receipt(self) -> Path:
        """The receipt."""
        return self.hidden / "receipt.json"

    @property
    def stat(self) -> Path:
        """The `stat` results of each file from the last verification of its content."""
        return self.hidden / "stat.json"

    @property
    def journal(self) -> Path:
        """The journal of a swap in progress."""
        return self.hidden / "journal.json"

    @property
    def kept(self) -> Path:
        """Local changes that `--discard` moved aside."""
        return self.hidden / "kept"

    def free_kept_name(self) -> str:
        """Return a free name in `kept`: the time, with a number if necessary."""
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
        names = (f"{stamp}.{count}" if count else stamp for count in itertools.count())
        return next(name for name in names if not os.path.lexists(self.kept / name))

    @property
    def is_swapping(self) -> bool:
        """Return whether a swap to a new workspace is in progress or was interrupted."""
        return os.path.lexists(self.journal)

    @property
    def is_workspace(self) -> bool:
        """Return whether the folder is a complete workspace."""
        return self.receipt.is_file() and self.lock.is_file()


# What a setup replaces, in this order, by renames on one file system.
MOVED = (
    "code",
    "src",
    "activate",
    ".npu-rl/git",
    ".npu-rl/lock.json",
    ".npu-rl/receipt.json",
    ".npu-rl/stat.json",
)


def repository_name(root: str) -> str:
    """Return the folder of a root's git repository under `.npu-rl/git`."""
    return root.replace("/", "-")


DEFAULT_NAME = "npu-rl-workspace"


def check_path(root: Path) -> None:
    """Raise WorkspaceError for a path that Python or a shell would misread.

    With a `:` in it, the code would verify, but Python would not import it.
    """
    text = os.fspath(root)
    why = None
    if os.pathsep in text:
        why = f"It contains {os.pathsep!r}, which separates the entries of PYTHONPATH: Python would not find the code."
    elif any(ord(c) < 32 or ord(c) == 127 for c in text):
        why = "It contains a control character, such as a line break."
    if why is not None:
        raise WorkspaceError(
            "Invalid workspace path", where=text, why=why, hint="Choose another --workspace."
        )
