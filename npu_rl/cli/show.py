"""Output for people: progress on standard error, results on standard output, plain when piped.

All output of commands goes through here (enforced by ruff's T201): names, titles and messages come from anybody, and
must neither control a terminal nor pass for a line of npu-rl's.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from npu_rl.cli.terminal_lines import coloured, fold_long_lines
from npu_rl.common.printable import counted, one_line, printable

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.stack.sources.progress import Watcher


def print_json(value: Any) -> None:
    """Print one document with keys in stable order on standard output. NaN and infinity, which JSON lacks, are null."""
    import json

    utf8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")  # JSON is read as UTF-8; else it is ASCII
    try:
        text = json.dumps(value, indent=2, ensure_ascii=not utf8, allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(value), indent=2, ensure_ascii=not utf8, allow_nan=False)
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _without_nan(value: Any) -> Any:
    """Return a document with None for each number that is not finite."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_report(document: Any, text: str, *, as_json: bool, fold: bool = False) -> None:
    """Print the document of --json, or the same as text of several lines.

    Args:
        fold: Whether long lines of the text are folded on a terminal; tables and drawings must not be.
    """
    if as_json:
        print_json(document)
    else:
        say_text(fold_long_lines(text, sys.stdout) if fold else text)


def say(line: str, *, whole: bool = False) -> None:
    """Print one line of a result on standard output, on a terminal folded at its width.

    Args:
        whole: Whether the line is one to copy, which is not folded.
    """
    print(one_line(line) if whole else fold_long_lines(one_line(line), sys.stdout))


def say_labelled(text: str) -> None:
    """Print lines of a result on standard output, folded, and `error`, `advice`, `note` and `fix` in colour."""
    sys.stdout.write(coloured(fold_long_lines(printable(text), sys.stdout), sys.stdout))


def say_text(text: str) -> None:
    """Print a result of several lines on standard output."""
    sys.stdout.write(printable(text))


def say_ids(lock: Lock, digest: str | None = None) -> None:
    """Print a lock's tree and commit, and the digest of its file if that is known."""
    say(f"tree   {lock.tree}")
    say(f"commit {lock.commit}")
    if digest is not None:
        say(f"lock   {digest}")


def say_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, least_needed: Sequence[str] = ()
) -> None:
    """Print a table without lines: on a terminal as wide as that, elsewhere with a line for each row.

    Args:
        heads: The names of the columns.
        rows: The cells.
        least_needed: Columns that a narrow terminal leaves out, as few as possible and the first ones first, before
            cells are folded.
    """
    import shutil
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    left_out: Sequence[str] = ()
    if sys.stdout.isatty():
        left_out = _too_wide(heads, rows, least_needed, shutil.get_terminal_size().columns)
        heads, rows = _without(heads, rows, left_out)
    table = Table(box=None, pad_edge=False, header_style="")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    out = StringIO()
    width = None if sys.stdout.isatty() else 10_000
    Console(file=out, width=width, color_system=None, highlight=False).print(table)
    say_text("".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()))
    if left_out:
        tell(f"Left out, as the terminal is too narrow: {', '.join(left_out)}")


def _too_wide(
    heads: Sequence[str], rows: list[Sequence[str]], least_needed: Sequence[str], width: int
) -> Sequence[str]:
    """Return the columns of `least_needed` without which the table fits a width: as few as possible, else all."""
    from itertools import combinations

    for count in range(len(least_needed) + 1):
        for names in combinations(least_needed, count):
            kept, cells = _without(heads, rows, names)
            if sum(max(map(len, column)) + 2 for column in zip(kept, *cells, strict=True)) - 2 <= width:
                return names
    return least_needed


def _without(
    heads: Sequence[str], rows: list[Sequence[str]], names: Sequence[str]
) -> tuple[Sequence[str], list[Sequence[str]]]:
    kept = [index for index, head in enumerate(heads) if head not in names]
    return [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]


def say_entry(head: str, text: str, piped: str | None = None) -> None:
    """Print an entry of a list: on a terminal its text below its head, folded at the width; elsewhere one line.

    Args:
        head: Columns, padded as in the other entries.
        text: What is below it.
        piped: What follows the head where that is not a terminal; by default the text.
    """
    if not sys.stdout.isatty():
        say(f"{head} {text if piped is None else piped}", whole=True)
        return
    say(head.rstrip(), whole=True)
    say_folded(f"    {text}", "    ")


def say_folded(line: str, indent: str) -> None:
    """Print a line without a command to copy, on a terminal folded at its width. indent: That of the other lines."""
    print(fold_long_lines(one_line(line), sys.stdout, indent))


_speaking = threading.Lock()


def tell(message: str) -> None:
    """Print one line on standard error that is not part of the result, folded on a terminal. Secrets are masked."""
    tell_text(fold_long_lines(one_line(message), sys.stderr))


def tell_text(text: str) -> None:
    """Print several lines on standard error in one write, from any thread; `print` writes the line end separately."""
    from npu_rl.common.masking import masked_text  # not every command has news

    with _speaking:
        sys.stderr.write(coloured(printable(masked_text(text)), sys.stderr) + "\n")
        sys.stderr.flush()


def error_count(count: int) -> str:
    """Return the number of errors as the last line of a check."""
    return counted(count, "error") if count else "no error"


def amount(size: int) -> str:
    """Return a number of bytes for people, in decimal units."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def rich_progress(*columns: Any) -> Any:
    """Start a progress display of rich on standard error that leaves nothing behind."""
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress


class PlainWatcher(AbstractContextManager["PlainWatcher"]):
    """A watcher that prints a line per event, for logs and pipes."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, component: str, source: str) -> None:
        """Print the component and its source, once."""
        with self._lock:
            if (component + source) in self._asked:
                return
            self._asked.add(component + source)
        tell(f"{component}: fetching from {source}")

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        """Print nothing: a log needs no progress."""

    def note(self, component: str, message: str) -> None:
        """Print the event."""
        tell(f"{component}: {message}")

    def end(self, component: str, size: int) -> None:
        """Print the received bytes."""
        if size:
            tell(f"{component}: {amount(size)}")

    def __exit__(self, *_: object) -> None:
        """Leave the printed lines."""


class LiveWatcher(AbstractContextManager["LiveWatcher"]):
    """A progress bar per component. rich is imported when the first one begins."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._lock = threading.Lock()

    def _task(self, component: str) -> Any:
        with self._lock:
            if self._progress is None:
                from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

                self._progress = rich_progress(
                    TextColumn("{task.fields[name]:<16}"),
                    BarColumn(bar_width=24),
                    TextColumn("{task.description}", markup=False),
                    TimeElapsedColumn(),
                )
            if component not in self._tasks:
                self._tasks[component] = self._progress.add_task("", total=1.0, name=component)
            return self._tasks[component]

    def begin(self, component: str, source: str) -> None:
        """Show the source beside the bar."""
        self._progress_update(component, description=one_line(source))

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        """Move the bar."""
        moved = {} if fraction is None else {"completed": fraction}
        self._progress_update(component, description=one_line(text), **moved)

    def note(self, component: str, message: str) -> None:
        """Print the event above the bars."""
        self._task(component)
        self._progress.console.print(printable(f"{component}: {message}"), markup=False, highlight=False)

    def end(self, component: str, size: int) -> None:
        """Fill the bar and show the received bytes."""
        if size:
            self._progress_update(component, completed=1.0, description=amount(size))

    def _progress_update(self, component: str, **changes: Any) -> None:
        task = self._task(component)  # begins the display
        self._progress.update(task, **changes)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def watcher() -> AbstractContextManager[Watcher]:
    """Return a watcher with bars on a terminal, and with lines elsewhere."""
    return LiveWatcher() if sys.stderr.isatty() else PlainWatcher()
