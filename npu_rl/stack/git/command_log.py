"""The log of git commands, with folder, duration and outcome. It is written only after `begin`.

Secrets are masked: in URLs, in values whose name marks a secret, in the environment, and the credentials of a fetch.
A log that can't be written fails nothing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from npu_rl.stack.git.environment import Credentials

FILE = "git.log"
_LARGEST = 5_000_000  # bytes; then it is renamed to git.log.1

echo: Callable[[str], None] | None = None
"""Prints each command too, for -v."""

_lock = threading.Lock()
_command_line: Sequence[str] | None = None
_log: TextIO | None = None


class CommandOutcome:
    """The outcome of a git process, as far as it is known. code: None if it has not exited."""

    code: int | None = None
    stderr = ""


def begin(arguments: Sequence[str]) -> None:
    """Log from here on, in the user's state folder. arguments: the command line, for the log."""
    global _command_line
    _command_line = list(arguments)


def end(seconds: float) -> None:
    """Print how long the whole command took, and log it with its arguments if there is a log."""
    global echo
    if echo is not None:
        echo(f"npu-rl: {seconds:.3f} s in all" + (f"; git's commands are in {_log.name}" if _log else ""))
        echo = None
    if _log is not None:
        from npu_rl.common.masking import masked_argument

        words = shlex.join(masked_argument(_safe(word)) for word in _command_line or ())
        note(f"{seconds:8.3f} s  in all: npu-rl {words}")


def written() -> Path | None:
    """Return the path of the log if this process wrote to it."""
    return None if _log is None else Path(_log.name)


def note(text: str) -> Path | None:
    """Add a text of several lines, such as a traceback. Returns the log's path, None if it can't be written."""
    global _log
    if _command_line is None:
        return None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = _safe(text).replace("\n", "\n    ")
    with _lock, contextlib.suppress(OSError):
        _log = _log or _opened()
        _log.write(f"{stamp} {os.getpid()}  {entry}\n")
    return written()


@contextlib.contextmanager
def recorded(
    args: Sequence[str], place: Path | None, credentials: Credentials | None = None
) -> Iterator[CommandOutcome]:
    """Log the git command that runs inside, once it has ended; the block sets the outcome."""
    outcome = CommandOutcome()
    started = time.monotonic()
    try:
        yield outcome
    finally:
        if _command_line is not None or echo is not None:
            seconds = time.monotonic() - started
            ended = "no exit" if outcome.code is None else f"exit {outcome.code}"
            command = _safe("git " + shlex.join(args), credentials)
            if echo is not None:
                echo(f"git: {seconds:.3f} s, {ended}: {command}")
            why = _safe(f"\n{outcome.stderr.strip()}", credentials) if outcome.code else ""
            note(f"{seconds:8.3f} s  {ended:<8}  {command}  (in {place}){why.rstrip()}")


def _opened() -> TextIO:
    from npu_rl.common.disk import private
    from npu_rl.common.user_state import own_state_folder

    path = own_state_folder() / FILE
    if path.exists() and path.stat().st_size > _LARGEST:
        path.replace(path.with_name(f"{FILE}.1"))
    return open(path, "a", 1, "utf-8", "backslashreplace", opener=private)


def _safe(text: str, credentials: Credentials | None = None) -> str:
    """Return the text without secrets and control characters."""
    from npu_rl.common.masking import Secrets, masked_text
    from npu_rl.common.printable import printable

    variables = dict(os.environ)
    if credentials is not None:
        variables |= {"USERNAME_SECRET": credentials.username, "PASSWORD": credentials.password}
    return masked_text(printable(Secrets.of(variables).mask(text)))
