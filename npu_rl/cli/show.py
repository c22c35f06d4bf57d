"""Output of commands: results on standard output, all else on standard error, and the next command.

All output of commands goes through here (enforced by ruff's T201): names, titles and messages come from anybody, and
must neither control a terminal nor pass for a line of npu-rl's.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.printable import counted, one_line, printable

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock

GOES_ON = "Stopped; the same command continues where it stopped."
KEEPS_DOWNLOADS = "Stopped; the same command continues with what it has fetched."
STARTS_OVER = "Stopped; nothing was changed. The same command starts over."

_writing = threading.Lock()
_after_interruption = ""


# -- results ------------------------------------------------------------------------------------------


def print_json(result: Any) -> None:
    """Print a result as one document on standard output, by `plain_data`."""
    import json

    from npu_rl.common.plain_data import plain_data

    utf8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")  # JSON is read as UTF-8; else it is ASCII
    text = json.dumps(plain_data(result), indent=2, ensure_ascii=not utf8)
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def print_report(result: Any, text: Callable[[], str], *, as_json: bool) -> None:
    """Print a result as the document of --json, or as its text."""
    if as_json:
        print_json(result)
    else:
        say_text(text())


def say(line: str) -> None:
    """Print one line of a result on standard output."""
    print(one_line(line))


def say_text(text: str) -> None:
    """Print a result of several lines on standard output."""
    sys.stdout.write(printable(text))


def say_ids(lock: Lock, digest: str | None = None) -> None:
    """Print a lock's tree and commit, and the digest of its file if that is known."""
    say(f"tree   {lock.tree}")
    say(f"commit {lock.commit}")
    if digest is not None:
        say(f"lock   {digest}")


def say_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without lines: on a terminal as wide as that, elsewhere with a line for each row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as printed:
        console.print(table)
    say_text("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def error_count(count: int) -> str:
    """Return the number of errors as the last line of a check."""
    return counted(count, "error") if count else "no error"


def amount(size: int) -> str:
    """Return a number of bytes for people, in decimal units."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


# -- all else -----------------------------------------------------------------------------------------


def tell(message: str) -> None:
    """Print one line on standard error that is not part of the result. Secrets are masked."""
    tell_text(one_line(message))


def tell_text(text: str) -> None:
    """Print several lines on standard error in one write, from any thread; `print` writes the line end separately."""
    from npu_rl.common.masking import masked_text  # not every command has news

    with _writing:
        sys.stderr.write(printable(masked_text(text)) + "\n")
        sys.stderr.flush()


def if_interrupted(text: str) -> None:
    """Set what is printed if a signal ends this command; "" for nothing."""
    global _after_interruption
    _after_interruption = text


def after_interruption() -> str:
    """Return what `if_interrupted` set."""
    return _after_interruption


def tell_next(*words: str | Path, workspace: Path | None = None) -> None:
    """Print the next command on standard error, as a shell reads it.

    Args:
        words: The command's words after `npu-rl`.
        workspace: The folder that --workspace named, if it did.
    """
    tell_last(f"Next: {command_line(*words, workspace=workspace)}")


def tell_last(line: str) -> None:
    """Print a line on standard error after the result, also where both streams are one pipe or file."""
    sys.stdout.flush()
    tell(line)


def command_line(*words: str | Path, workspace: Path | None = None) -> str:
    """Return a command of npu-rl as a shell reads it."""
    at = () if workspace is None else ("--workspace", workspace)
    return shlex.join(map(str, ("npu-rl", *words, *at)))
