"""Progress of a run: plain lines for logs and pipes, a live table on a terminal."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from npu_rl.common.printable import one_line
from npu_rl.training.monitor.metrics import phase_seconds, reward, seconds, throughput
from npu_rl.training.monitor.watch import Alarm

_SHORT = {"old_log_prob": "old", "update_actor": "update"}  # short names of phases
_ROWS = 8  # steps a live table shows


class Screen(Protocol):
    """Output of a run's progress."""

    def stage(self, text: str) -> None:
        """Show what is done before the first step or after the last, such as "starting Ray"."""

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Show the metrics of one step.

        Args:
            total: Number of steps; None if unknown.
            eta: Remaining seconds; None if unknown.
        """

    def alarm(self, alarm: Alarm) -> None:
        """Show an alarm."""

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


def step_line(
    step: int, total: int | None, data: Mapping[str, float], eta: float | None, dies_per_card: int = 1
) -> str:
    """Return a step as one line: `step 12/60 reward 0.123 len 15.8 0.61 s (gen .30 ...) 432 tok/s/die ... ETA 0:32`.

    Missing metrics are left out.
    """
    cells = _cells(step, total, data, eta, dies_per_card)
    words = [f"step {cells['step']}"]
    for name, text in (("reward", "reward {}"), ("len", "len {}"), ("s", "{} s"), ("split", "({})")):
        if cells[name]:
            words.append(text.format(cells[name]))
    for name, text in (("die", "{} tok/s/die"), ("card", "{} tok/s/card"), ("eta", "ETA {}")):
        if cells[name]:
            words.append(text.format(cells[name]))
    return " ".join(words)


def _cells(
    step: int, total: int | None, data: Mapping[str, float], eta: float | None, dies_per_card: int
) -> dict[str, str]:
    """Return a step's metrics as text, "" for missing ones."""
    mean, length, took = reward(data), data.get("response_length/mean"), seconds(data)
    rate = throughput(data, dies_per_card)
    return {
        "step": f"{step}/{total}" if total else str(step),
        "reward": "" if mean is None else f"{mean:.3f}",
        "len": "" if length is None else f"{length:.1f}",
        "s": "" if took is None else _duration(took),
        "split": " ".join(
            f"{_SHORT.get(phase, phase)} {_brief(value)}"
            for phase, value in phase_seconds(data).items()
            if value >= 0.005
        ),
        "die": "" if rate is None else f"{rate[0]:.0f}",
        "card": "" if rate is None or dies_per_card == 1 else f"{rate[1]:.0f}",
        "eta": "" if eta is None else clock(eta),
    }


def _duration(took: float) -> str:
    return f"{took:.2f}" if took < 10 else f"{took:.1f}" if took < 100 else f"{took:.0f}"


def _brief(took: float) -> str:
    """Return seconds in three or four characters: .30, 4.2, 137."""
    if took < 0.995:
        return f"{took:.2f}".removeprefix("0")
    return f"{took:.1f}" if took < 100 else f"{took:.0f}"


def clock(eta: float) -> str:
    """Return seconds as 0:32, 12:05 or 3:07:00."""
    whole = max(round(eta), 0)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _alarm_lines(alarm: Alarm) -> list[str]:
    head = "FATAL" if alarm.fatal else "WARNING"
    return [f"{head}: {alarm.message}", f"  why:   {alarm.cause}", f"  where: {alarm.place}"]


# -- the screens ---------------------------------------------------------------------------------------


class PlainScreen:
    """A line per step, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, *, dies_per_card: int = 1) -> None:
        self._stream = stream or sys.stderr
        self._dies_per_card = dies_per_card
        self._stage = ""

    def stage(self, text: str) -> None:
        """Print a stage once."""
        if text != self._stage:
            self._stage = text
            self._print(text)

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Print the metrics of a step."""
        self._print(step_line(step, total, data, eta, self._dies_per_card))

    def alarm(self, alarm: Alarm) -> None:
        """Print an alarm."""
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
    """The latest steps in a table that is redrawn in place, with the stage and a progress bar below it."""

    def __init__(self, stream: TextIO | None = None, *, dies_per_card: int = 1) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._dies_per_card = dies_per_card
        self._rows: deque[dict[str, str]] = deque(maxlen=_ROWS)
        self._note = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[eta]}", markup=False),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=None, eta="")
        self._live = Live(self._view(), console=self._console, refresh_per_second=8, redirect_stdout=False)
        self._live.start()

    def stage(self, text: str) -> None:
        """Show a stage beside the progress bar."""
        self._progress.update(self._task, description=one_line(text))

    def step(self, step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> None:
        """Add a row to the table."""
        cells = _cells(step, total, data, eta, self._dies_per_card)
        self._rows.append(cells)
        self._progress.update(
            self._task,
            description="training",
            completed=step,
            total=total,
            eta=f"ETA {cells['eta']}" if cells["eta"] else "",
        )
        self._live.update(self._view())

    def alarm(self, alarm: Alarm) -> None:
        """Print an alarm above the table."""
        from rich.text import Text

        style = "bold red" if alarm.fatal else "yellow"
        self._console.print(Text("\n".join(map(one_line, _alarm_lines(alarm))), style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """Show a note above the table."""
        self._note = text
        self._live.update(self._view())

    def close(self) -> None:
        """Leave the table on the terminal without the progress bar."""
        self._progress.update(self._task, eta="")
        self._live.update(self._view(ended=True))
        self._live.stop()

    def _view(self, ended: bool = False) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for title in ("step", "reward", "len", "s"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("split", ratio=1)
        for title in ("tok/s/die", "tok/s/card"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*(row[name] for name in ("step", "reward", "len", "s", "split", "die", "card")))
        parts: list[Any] = [Text(self._note, style="bold yellow")] if self._note else []
        parts += [table] if self._rows else []
        return Group(*parts, *([] if ended else [self._progress]))
