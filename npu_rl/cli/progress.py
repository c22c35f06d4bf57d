"""Progress on standard error: bars of rich on a terminal, a line for each event elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from npu_rl.cli.show import amount, tell
from npu_rl.common.printable import one_line

if TYPE_CHECKING:
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_Self = TypeVar("_Self", bound="Bars")
_PATIENCE = 1.0  # seconds until a bar for files is shown: most workspaces are read before


class Bars:
    """Bars of rich, on a terminal alone, by name. rich is imported when the first one moves."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self: _Self) -> _Self:
        return self

    def move(self, name: str, text: str, fraction: float | None) -> None:
        """Show a text beside the bar, and the completed fraction (0 to 1) if it is known."""
        if not self.shown:
            return
        with self._lock:
            if self._progress is None:
                from rich.console import Console
                from rich.progress import Progress

                self._progress = Progress(console=Console(stderr=True), transient=True)
                self._progress.start()
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task("", total=1.0)
            shown = one_line(f"{name}: {text}").replace("[", "\\[")
            self._progress.update(self._tasks[name], description=shown, completed=fraction)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


class Fetches(Bars):
    """A watcher of sources (`npu_rl.stack.sources.progress`)."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: set[tuple[str, str]] = set()

    def begin(self, component: str, source: str) -> None:
        """Print the component and its source, once."""
        with self._lock:
            if (component, source) in self._begun:
                return
            self._begun.add((component, source))
        tell(f"{component}: fetching from {source}")

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        """Move the bar."""
        self.move(component, text, fraction)

    def note(self, component: str, message: str) -> None:
        """Print the event."""
        tell(f"{component}: {message}")

    def end(self, component: str, size: int) -> None:
        """Print the received bytes."""
        if size:
            tell(f"{component}: {amount(size)}")


class FilesRead(Bars):
    """The files of a workspace that were read, for `verify`."""

    def __init__(self) -> None:
        super().__init__()
        self._next = time.monotonic() + _PATIENCE

    def __call__(self, done: int, total: int) -> None:
        """Show how many of all files were read."""
        if time.monotonic() >= self._next:
            self.move("reading the files", f"{done} of {total}", done / total)


class Weights(Bars):
    """Progress of work on weights (`output_folder.WorkProgress`), in bytes and files."""

    def __init__(self, doing: str, goal: str = "to write") -> None:
        super().__init__()
        self._doing, self._goal = doing, goal
        self._total, self._done, self._files = 1, 0, ""

    def begin(self, total: int, done: int) -> None:
        """Print how many bytes there are, and how many of them were written before."""
        self._total, self._done = max(total, 1), done
        there = f", {done / 1e9:.1f} GB of them from before" if done else ""
        tell(f"{total / 1e9:.1f} GB {self._goal}{there}")

    def advance(self, count: int) -> None:
        """Move the bar by a number of bytes."""
        with self._lock:
            self._done += count
        self.move(self._doing, f"{self._done / 1e9:.1f} GB{self._files}", self._done / self._total)

    def shard(self, name: str, done: int, total: int) -> None:
        """Print the file that is finished."""
        self._files = f", {done} of {total} files"
        if not self.shown:
            tell(f"[{done}/{total}] {name}")


def require_proven(paths: WorkspacePaths, consequence: str) -> None:
    """Raise WorkspaceError unless the workspace equals its lock; the arguments are those of `require_locked`."""
    from npu_rl.workspace.verification.require_locked import require_locked

    with FilesRead() as progress:
        require_locked(paths, tell, consequence, progress)
