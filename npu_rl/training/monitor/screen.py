"""Progress of a run: plain lines for logs and pipes, a live table on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from npu_rl.common.printable import one_line
from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.step_clock import Wait
from npu_rl.training.monitor.step_text import clock, step_line, step_text

__all__ = ["LiveScreen", "PlainScreen", "clock", "screen_for"]

_ROWS = 8  # steps a live table shows


class PlainScreen:
    """Output of a run's progress: a line per step, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """Begin the output. `now` is the clock for the times of stages."""
        self._stream = stream or sys.stderr
        self._now, self._began = now, now()
        self._stage = ""

    def stage(self, text: str) -> None:
        """Print a stage once, preceded by the time since the start."""
        if text != self._stage:
            self._stage = text
            self._print(f"{clock(self._now() - self._began)} {text}")

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Show the metrics of one step.

        Args:
            total: Number of steps; None if unknown.
            eta: Remaining seconds; None if unknown.
        """
        self._print(step_line(step, total, data, eta))

    def waiting(self, wait: Wait, slow: bool) -> None:
        """Show how long the next step has taken so far; called repeatedly.

        Args:
            slow: Whether this is the moment to say that it takes longer than usual.
        """
        if slow:
            usual = "" if wait.longest is None else f", at most {clock(wait.longest)} before"
            alarm = f"; an alarm comes at {clock(wait.limit)}" if wait.waited < wait.limit else ""
            self._print(f"{wait.what}: {clock(wait.waited)}{usual}{alarm}")

    def alarm(self, alarm: Alarm) -> None:
        """Show an alarm: in full the first time, then its count the second, fourth, eighth ... time."""
        for line in _alarm_lines(alarm):
            self._print(line)

    def note(self, text: str) -> None:
        """Print a note."""
        self._print(text)

    def close(self) -> None:
        """Do nothing: all lines are printed."""
        pass

    def _print(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        shown = one_line(line).encode(encoding, "backslashreplace").decode(encoding)
        print(shown, file=self._stream, flush=True)


def screen_for(stream: TextIO | None = None) -> PlainScreen:
    """Return a live table for a terminal with cursor control, else plain lines.

    Args:
        stream: By default standard error.
    """
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        return LiveScreen(stream)
    return PlainScreen(stream)


def _alarm_lines(alarm: Alarm) -> list[str]:
    head = "FATAL" if alarm.fatal else "WARNING"
    if alarm.count & (alarm.count - 1):  # not a power of two
        return []
    if alarm.count > 1:
        return [f"{head} again (time {alarm.count}): {alarm.message}"]
    labelled = (("why:", alarm.cause), ("where:", alarm.place), ("next:", alarm.hint))
    texts = [f"  {label:<6} " + text.replace("\n", "\n" + " " * 9) for label, text in labelled if text]
    return "\n".join([f"{head}: {alarm.message}", *texts]).split("\n")


class LiveScreen(PlainScreen):
    """The latest steps in a table that is redrawn in place, with the current step and a progress bar below it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._rows: deque[dict[str, str]] = deque(maxlen=_ROWS)
        self._note = ""
        self._progress = Progress(
            *(SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)),
            *(BarColumn(bar_width=16), MofNCompleteColumn(), TextColumn("{task.fields[eta]}")),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=None, eta="")
        self._live = Live(self._view(), console=self._console, refresh_per_second=8, redirect_stdout=False)
        self._live.start()

    def stage(self, text: str) -> None:
        """Show a stage beside the time since the start."""
        self._progress.update(self._task, description=one_line(text))

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Add a row to the table."""
        self._rows.append(step_text(step, total, data))
        left = "" if eta is None else f"ETA {clock(eta)}"
        self._progress.update(self._task, completed=step, total=total, eta=left)
        self._live.update(self._view())

    def waiting(self, wait: Wait, slow: bool) -> None:
        """Show the time of the current step beside the progress bar."""
        del slow
        usual = f" of {clock(wait.longest)} at most" if wait.longest is not None and wait.longest >= 1 else ""
        self._progress.update(self._task, description=one_line(f"{wait.what} {clock(wait.waited)}{usual}"))

    def alarm(self, alarm: Alarm) -> None:
        """Print an alarm above the table."""
        from rich.text import Text

        if lines := _alarm_lines(alarm):
            style = "bold red" if alarm.fatal else "yellow"
            self._console.print(Text("\n".join(map(one_line, lines)), style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """Show a note above the table."""
        self._note = text
        self._live.update(self._view())

    def close(self) -> None:
        """Leave the table, without the progress bar, on the terminal."""
        self._live.update(self._view(ended=True))
        self._live.stop()

    def _view(self, ended: bool = False) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        parts: list[Any] = [Text(self._note, style="bold yellow")] if self._note else []
        if self._rows:
            table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
            for head in self._rows[0]:
                split = head == "split"  # the column that a narrow terminal cuts
                table.add_column(head, justify="left" if split else "right", no_wrap=not split)
            for row in self._rows:
                table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row.values()))
            parts.append(table)
        return Group(*parts, *([] if ended else [self._progress]))
