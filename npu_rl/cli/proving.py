"""Progress while every file is read: nothing for the first second, then the completed share."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from npu_rl.cli.show import rich_progress, tell

if TYPE_CHECKING:
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_PATIENCE = 1.0  # seconds until anything is shown
_PAUSE = 5.0  # seconds between two lines where there is no terminal


@contextlib.contextmanager
def shown() -> Iterator[Callable[[int, int], None]]:
    """Provide `progress` for `verify`: a bar on a terminal, an occasional line elsewhere, on standard error."""
    progress = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield progress
    finally:
        progress.end()


def require_proven(paths: WorkspacePaths, consequence: str) -> None:
    """Raise WorkspaceError unless the workspace equals its lock; the arguments are those of `require_locked`."""
    from npu_rl.workspace.verification.require_locked import require_locked

    with shown() as progress:
        require_locked(paths, tell, consequence, progress)


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + _PATIENCE

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE
            self.show(done, total)

    def show(self, done: int, total: int) -> None:
        tell(f"reading the files: {done} of {total}")

    def end(self) -> None:
        pass


class _Bar(_Lines):
    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None

    def show(self, done: int, total: int) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

            what = TextColumn("reading the files")
            self._bar = rich_progress(what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._task = self._bar.add_task("", total=total)
        self._next = 0.0  # a bar is cheap to move
        self._bar.update(self._task, completed=done)
        if done >= total:
            self.end()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._next = float("inf")
