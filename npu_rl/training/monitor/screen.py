"""Progress of a run: plain lines for logs and pipes, a live table on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from npu_rl.common.printable import one_line
from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.phase_clock import PhaseWait
from npu_rl.training.monitor.step_text import StepText, clock, step_line, step_text

__all__ = ["LiveScreen", "PlainScreen", "Screen", "clock", "screen_for"]

_ROWS = 8  # steps a live table shows
_CARD_WIDTH = 100  # columns from which a live table has tokens per card beside those per die


class Screen(Protocol):
    """Output of a run's progress."""

    def stage(self, text: str) -> None:
        """Show the current stage before the first step or after the last, such as "starting Ray"."""

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Show the metrics of one step.

        Args:
            total: Number of steps; None if unknown.
            eta: Remaining seconds; None if unknown.
        """

    def waiting(self, wait: PhaseWait, slow: bool) -> None:
        """Show the elapsed time of the phase in progress; called repeatedly.

        Args:
            slow: Whether this is the moment to say that it takes longer than usual.
        """

    def alarm(self, alarm: Alarm) -> None:
        """Show an alarm: in full the first time, then its count."""

    def note(self, text: str) -> None:
        """Show a note that stays visible."""

    def close(self) -> None:
        """End the output and restore the terminal."""


def screen_for(stream: TextIO | None = None, *, dies_per_card: int = 1) -> Screen:
    """Return a live table for a terminal with cursor control, else plain lines.

    Args:
        stream: By default standard error.
    """
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        return LiveScreen(stream, dies_per_card=dies_per_card)
    return PlainScreen(stream, dies_per_card=dies_per_card)


# -- the words -----------------------------------------------------------------------------------------


def _alarm_lines(alarm: Alarm) -> list[str]:
    head = "FATAL" if alarm.fatal else "WARNING"
    if alarm.count > 1:
        return [f"{head} again (time {alarm.count}): {alarm.message}"]
    return [
        f"{head}: {alarm.message}",
        *_labelled("why:", alarm.cause),
        *_labelled("where:", alarm.place),
        *_labelled("next:", alarm.hint),
    ]


def _labelled(label: str, text: str) -> list[str]:
    if not text:
        return []
    first, *others = text.split("\n")
    return [f"  {label:<6} {first}", *(" " * 9 + line for line in others)]


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def _slow_text(wait: PhaseWait) -> str:
    usual = "" if wait.longest is None else f", at most {clock(wait.longest)} before"
    alarm = f"; an alarm comes at {clock(wait.limit)}" if wait.waited < wait.limit else ""
    return f"{wait.phase}: {clock(wait.waited)}{usual}{alarm}"


# -- the screens ---------------------------------------------------------------------------------------


class PlainScreen:
    """A line per step, for logs and pipes."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        dies_per_card: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the output. `now` is the clock for the times of stages."""
        self._stream = stream or sys.stderr
        self._dies_per_card = dies_per_card
        self._now, self._began = now, now()
        self._stage = ""

    def stage(self, text: str) -> None:
        """Print a stage once, preceded by the time since the start."""
        if text != self._stage:
            self._stage = text
            self._print(f"{clock(self._now() - self._began)} {text}")

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Print the metrics of a step."""
        self._print(step_line(step, total, data, eta, self._dies_per_card))

    def waiting(self, wait: PhaseWait, slow: bool) -> None:
        """Print a line for a phase that takes longer than usual."""
        if slow:
            self._print(_slow_text(wait))

    def alarm(self, alarm: Alarm) -> None:
        """Print an alarm. A repeated one is printed as one line the second, fourth, eighth ... time."""
        if _is_power_of_two(alarm.count):
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


class LiveScreen:
    """The latest steps in a table that is redrawn in place, with the phase and a progress bar below it."""

    def __init__(self, stream: TextIO | None = None, *, dies_per_card: int = 1) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._dies_per_card = dies_per_card
        self._rows: deque[StepText] = deque(maxlen=_ROWS)
        self._note = ""
        self._repeated: Counter[str] = (
            Counter()
        )  # how often an alarm came, by its latest message's kind and cause
        self._latest: dict[str, str] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[eta]}", markup=False),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=None, eta="", count="")
        self._live = Live(self._view(), console=self._console, refresh_per_second=8, redirect_stdout=False)
        self._live.start()

    def stage(self, text: str) -> None:
        """Show a stage beside the time since the start."""
        self._progress.update(self._task, description=one_line(text))

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Add a row to the table."""
        cells = step_text(step, total, data, eta, self._dies_per_card)
        self._rows.append(cells)
        self._progress.update(
            self._task,
            completed=step,
            total=total,
            count=cells.step,
            eta=f"ETA {cells.eta}" if cells.eta else "",
        )
        self._live.update(self._view())

    def waiting(self, wait: PhaseWait, slow: bool) -> None:
        """Show the phase and its time beside the progress bar."""
        del slow
        usual = f" of {clock(wait.longest)} at most" if wait.longest is not None and wait.longest >= 1 else ""
        shown = f"{wait.phase} {clock(wait.waited)}{usual}"
        self._progress.update(self._task, description=one_line(shown))

    def alarm(self, alarm: Alarm) -> None:
        """Print an alarm above the table. Repetitions are counted below the table."""
        from rich.text import Text

        if alarm.count > 1:
            cause = f"{alarm.kind} {alarm.cause}"
            self._repeated[cause], self._latest[cause] = alarm.count, alarm.message
            self._live.update(self._view())
            return
        style = "bold red" if alarm.fatal else "yellow"
        self._console.print(Text("\n".join(map(one_line, _alarm_lines(alarm))), style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """Show a note above the table."""
        self._note = text
        self._live.update(self._view())

    def close(self) -> None:
        """Leave the table, without the progress bar, on the terminal."""
        self._progress.update(self._task, eta="")
        self._live.update(self._view(ended=True))
        self._live.stop()

    def _view(self, ended: bool = False) -> Any:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(self._note, style="bold yellow")] if self._note else []
        parts += [self._table()] if self._rows else []
        for cause, count in self._repeated.items():
            parts.append(Text(one_line(f"{count} times, last: {self._latest[cause]}"), style="yellow"))
        return Group(*parts, *([] if ended else [self._progress]))

    def _table(self) -> Any:
        """Return the table with one line per step, which shows the phases that fit."""
        from rich.table import Table

        columns = [
            ("step", [row.step for row in self._rows]),
            ("reward", [row.reward for row in self._rows]),
            ("len", [row.length for row in self._rows]),
            ("s", [row.seconds for row in self._rows]),
            ("tok/s/die", [row.die for row in self._rows]),
        ]
        if any(row.card for row in self._rows) and self._console.width >= _CARD_WIDTH:
            columns.append(("tok/s/card", [row.card for row in self._rows]))
        used = sum(max(len(title), *map(len, cells)) + 1 for title, cells in columns)
        split = [row.shown_split(self._console.width - used) for row in self._rows]
        columns.insert(4, ("split", split))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # one column between two, as counted
        for title, _ in columns:
            table.add_column(title, justify="left" if title == "split" else "right", no_wrap=True)
        for cells in zip(*(cells for _, cells in columns), strict=True):
            table.add_row(*cells)
        return table
