"""Where things are in a workspace, and the lock that keeps two commands from writing at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.disk import disk_errors
from npu_rl.errors import WorkspaceError


@dataclass(frozen=True)
class Layout:
    """Paths of one workspace. `root` is absolute."""

    root: Path

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


def find_workspace(given: Path | None) -> Layout:
    """The workspace to work on: the one given, else the nearest at or above the current folder.

    Raises WorkspaceError if there is none.
    """
    if given is not None:
        layout = Layout(given.expanduser().absolute())
        if layout.is_workspace or layout.journal.is_file():
            return layout
        raise WorkspaceError(
            f"{layout.root} is not a workspace",
            why=f"There is no {layout.receipt.relative_to(layout.root)} in it.",
            hint="Set one up: npu-rl setup --manifest NAME --workspace DIR",
        )
    here = Path.cwd()
    for folder in (here, *here.parents, here / DEFAULT_NAME):
        layout = Layout(folder)
        if layout.is_workspace or layout.journal.is_file():
            return layout
    raise WorkspaceError(
        "There is no workspace here or in a folder above",
        where=str(here),
        hint="Name one with --workspace DIR, or set one up: npu-rl setup --manifest NAME",
    )


DEFAULT_NAME = "npu-rl-workspace"


@contextlib.contextmanager
def exclusive(layout: Layout, tell: Callable[[str], None], wait: float = 600.0) -> Iterator[None]:
    """Hold the workspace. Works between hosts on a network file system that has locks.

    tell: hears it if another command has to be waited for. wait: for how many seconds at most.
    Raises WorkspaceError after that.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(str(layout.hidden / "busy.lock"))
    with disk_errors(layout.root):
        layout.hidden.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            tell(f"Another npu-rl command is working in {layout.root}; waiting for it.")
            try:
                lock.acquire(timeout=wait)
            except Timeout as error:
                raise WorkspaceError(
                    "Another npu-rl command is working in this workspace",
                    where=str(layout.root),
                    hint="Wait until it has ended, then run again.",
                ) from error
    try:
        yield
    finally:
        lock.release()
