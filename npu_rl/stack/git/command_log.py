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
_LONGEST_COMMAND = 500  # characters
_LONGEST_MESSAGE = 20_000

echo: Callable[[str], None] | None = None
"""What is told each command too, for -v."""

_speaking = threading.RLock()
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
    """Print how long the whole command took, and log it if there is a log."""
    global echo
    if echo is not None:
        echo(f"npu-rl: {seconds:.3f} s in all")
        echo = None
    if _log is not None:
        _append(f"{seconds:8.3f} s  in all")


def written() -> Path | None:
    """Return the path of the log if this process wrote to it."""
    return None if _log is None else Path(_log.name)


def note(text: str) -> Path | None:
    """Add a text of several lines, such as a traceback. Returns the log's path, None if it can't be written."""
    if _command_line is None:
        return None
    _append(_safe(text)[-_LONGEST_MESSAGE:])
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
            if len(command) > _LONGEST_COMMAND:
                command = f"{command[:_LONGEST_COMMAND]} … ({len(args)} words)"
            if echo is not None:
                echo(f"git: {seconds:.3f} s, {ended}: {command}")
            where = f"  (in {_safe(str(place))})" if place is not None else ""
            why = _safe(outcome.stderr.strip(), credentials)[:_LONGEST_MESSAGE] if outcome.code != 0 else ""
            _append(f"{seconds:8.3f} s  {ended:<8}  {command}{where}" + (f"\n{why}" if why else ""))


def _append(text: str) -> None:
    """Add an entry, whose further lines are indented; the command line before the first one."""
    global _log
    if _command_line is None:
        return
    with _speaking, contextlib.suppress(OSError):
        if _log is None:
            import npu_rl
            from npu_rl.common.disk import private
            from npu_rl.common.user_state import own_state_folder

            path = own_state_folder() / FILE
            if path.exists() and path.stat().st_size > _LARGEST:
                path.replace(path.with_name(f"{FILE}.1"))
            _log = open(path, "a", 1, "utf-8", "backslashreplace", opener=private)  # noqa: SIM115
            if echo is not None:
                echo(f"git: logged in {path}")
            from npu_rl.common.masking import masked_argument

            words = ["npu-rl", *(masked_argument(_safe(word)) for word in _command_line)]
            _append(f"npu-rl {npu_rl.__version__}: {shlex.join(words)}"[:_LONGEST_COMMAND])
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        _log.write(f"{stamp} {os.getpid()}  " + text.replace("\n", "\n    ") + "\n")


def _safe(text: str, credentials: Credentials | None = None) -> str:
    """Return the text without secrets and control characters."""
    from npu_rl.common.masking import Secrets, masked_text
    from npu_rl.common.printable import printable

    variables = dict(os.environ)
    if credentials is not None:
        variables |= {"USERNAME_SECRET": credentials.username, "PASSWORD": credentials.password}
    return masked_text(printable(Secrets.of(variables).mask(text)))
