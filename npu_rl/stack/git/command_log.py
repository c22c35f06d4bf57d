"""The log of git commands, with folder, duration and outcome. It is written only after `begin`.

Secrets are masked: in URLs, in values whose name marks a secret, in the environment, and the credentials of a fetch.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_rl.common.masking import Secrets
    from npu_rl.common.private_log import PrivateLog
    from npu_rl.stack.git.environment import Credentials

FILE = "git.log"
_MOST_WORDS = 50
_LONGEST_COMMAND = 500  # characters
_LONGEST_MESSAGE = 4000
_LONGEST_TRACE = 20_000

echo: Callable[[str], None] | None = None
"""What is told each command too, for -v."""

_speaking = threading.Lock()
_command_line: Sequence[str] | None = None
_log: PrivateLog | None = None
_known: Secrets | None = None


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
        with _speaking:
            _append(_stamped(f"{seconds:8.3f} s  in all"))


def written() -> Path | None:
    """Return the path of the log if this process wrote to it."""
    return None if _log is None else _log.path


def note(text: str) -> Path | None:
    """Add a text of several lines, such as a traceback. Returns the log's path, None if it can't be written."""
    if _command_line is None:
        return None
    with _speaking:
        _append(_stamped(_indented(_safe(text)[-_LONGEST_TRACE:])))
    return written()


@contextlib.contextmanager
def recorded(
    args: Sequence[str], place: Path | None, credentials: Credentials | None = None
) -> Iterator[CommandOutcome]:
    """Log the git command that runs inside, once it has ended; the block sets the outcome."""
    if _command_line is None and echo is None:
        yield CommandOutcome()
        return
    outcome = CommandOutcome()
    started = time.monotonic()
    try:
        yield outcome
    finally:
        _record(args, place, time.monotonic() - started, outcome, credentials)


def _record(
    args: Sequence[str],
    place: Path | None,
    seconds: float,
    outcome: CommandOutcome,
    credentials: Credentials | None,
) -> None:
    ended = "no exit" if outcome.code is None else f"exit {outcome.code}"
    command = _safe("git " + " ".join(map(shlex.quote, args[:_MOST_WORDS])), credentials)
    if len(args) > _MOST_WORDS or len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]} … ({len(args)} words)"
    where = f"  (in {_safe(str(place), credentials)})" if place is not None else ""
    why = _safe(outcome.stderr.strip(), credentials)[:_LONGEST_MESSAGE] if outcome.code != 0 else ""
    if echo is not None:
        echo(f"git: {seconds:.3f} s, {ended}: {command}")
    if _command_line is None:
        return
    with _speaking:
        _append(
            _stamped(f"{seconds:8.3f} s  {ended:<8}  {command}{where}")
            + ("\n    " + _indented(why) if why else "")
        )


def _append(text: str) -> None:
    global _log
    if _log is None:
        from npu_rl.common.private_log import PrivateLog, state_folder

        folder = state_folder()
        if folder is None:
            return
        log = PrivateLog(folder, FILE)
        if log.write(f"{_beginning()}\n{text}\n"):
            _log = log
            if echo is not None:
                echo(f"git: logged in {log.path}")
        return
    _log.write(text + "\n")


def _beginning() -> str:
    import npu_rl
    from npu_rl.common.masking import masked_argument

    # One by one: in running text a secret may reach to the end of the line.
    words = [shlex.quote(masked_argument(_without_known(word))) for word in _command_line or ()]
    return _stamped(f"npu-rl {npu_rl.__version__}: {' '.join(['npu-rl', *words])}"[:_LONGEST_COMMAND])


def _stamped(text: str) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {os.getpid()}  {text}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _safe(text: str, credentials: Credentials | None = None) -> str:
    """Return the text without secrets and control characters."""
    from npu_rl.common.masking import Secrets, masked_text

    if credentials is not None:
        words = {"USERNAME_SECRET": credentials.username, "PASSWORD": credentials.password}
        text = Secrets.of(words).mask(text)
    return masked_text(_without_known(text))


def _without_known(text: str) -> str:
    """Return the text without control characters and the secrets of the environment."""
    from npu_rl.common.masking import Secrets
    from npu_rl.common.printable import printable

    global _known
    if _known is None:
        _known = Secrets.of(os.environ)
    return printable(_known.mask(text))
