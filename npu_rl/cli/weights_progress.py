"""Progress while weights are written: a bar on a terminal, a line for each shard elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from npu_rl.cli.show import rich_progress, tell
from npu_rl.weights.checkpoints.output_folder import WorkProgress


@contextlib.contextmanager
def watching(doing: str = "casting", units: str = "shards", goal: str = "to write") -> Iterator[WorkProgress]:
    """Show the progress of work on weights on standard error.

    Args:
        doing: The action, such as casting.
        units: The items to count, such as shards.
        goal: The text after the total size, such as "to write".
    """
    watch = _Bar(doing, units, goal) if sys.stderr.isatty() else _Lines(doing, units, goal)
    try:
        yield watch
    finally:
        watch.end()


@contextlib.contextmanager
def reading(total: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how much of the files has been read; yield a thread-safe function that counts bytes."""
    lock = threading.Lock()
    bar = _Bar("hashing", "files", "to read") if sys.stderr.isatty() else None
    if bar is not None:
        bar.begin(total, 0)

    def progress(count: int) -> None:
        if bar is not None:
            with lock:
                bar.advance(count)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.end()


def last_line(seconds: float, kept: int, units: str) -> str:
    """Return the end of a report: the duration, and the units that were there from before."""
    if not seconds:
        return (
            "It was finished before, and each file has its size; `npu-rl weights audit` compares the values."
        )
    return f"Done in {seconds:.1f} s" + (f"; {kept} {units} were there from before." if kept else ".")


class _Lines(WorkProgress):
    def __init__(self, doing: str, units: str, goal: str) -> None:
        self._doing, self._units, self._goal = doing, units, goal

    def begin(self, total: int, done: int) -> None:
        there = f", {done / 1e9:.1f} GB of them from before" if done else ""
        tell(f"{total / 1e9:.1f} GB {self._goal}{there}")

    def shard(self, name: str, done: int, total: int) -> None:
        tell(f"[{done}/{total}] {name}")

    def end(self) -> None:
        """Remove the display."""


class _Bar(_Lines):
    def __init__(self, doing: str, units: str, goal: str) -> None:
        super().__init__(doing, units, goal)
        self._bar: Any = None

    def begin(self, total: int, done: int) -> None:
        from rich import progress

        self._bar = rich_progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(self._doing, total=total, completed=done)

    def advance(self, count: int) -> None:
        self._bar.advance(self._task, count)

    def shard(self, name: str, done: int, total: int) -> None:  # noqa: ARG002
        self._bar.update(self._task, description=f"{done} of {total} {self._units}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
