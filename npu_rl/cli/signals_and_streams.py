"""Signals and standard streams of a command, which ends quietly whatever becomes of them.

SIGINT (Ctrl-C), SIGTERM and SIGHUP end it with 128 and the signal's number. A signal that the caller ignores stays
ignored: nohup ignores SIGHUP, and a shell SIGINT for commands with `&`. A stream that is closed, broken or on a full
disk changes the exit code to 1 at most.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Handler = Callable[[int, "FrameType | None"], None]
AGAIN_S = 0.01  # until what a finalizer swallowed is raised again


def end_at_once() -> None:
    """Make a signal end the process immediately, without an exception.

    For times before any work is started: an exception during an import, or while Python exits, is printed or lost.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    _handle(lambda number, _frame: os._exit(128 + number))


def interrupt(came: list[int]) -> None:
    """Make a signal raise KeyboardInterrupt with its number in the main thread, so that staged files are removed.

    Args:
        came: The list that the signal's number is first added to.
    """

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt(number)

    def again(lost: UnraisableHookArgs) -> None:
        """Raise the interruption again after a finalizer has swallowed it; the import system has such finalizers."""
        if lost.exc_type is KeyboardInterrupt and came:
            signal.signal(signal.SIGALRM, lambda _number, frame: note(came[0], frame))
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            sys.__unraisablehook__(lost)

    sys.unraisablehook = again
    _handle(note)


def _handle(handler: Handler) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


# -- streams ------------------------------------------------------------------------------------------


def prepare_streams() -> None:
    """Open /dev/null for the streams that the caller closed.

    Otherwise the next opened file would get their number, and any library's output.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = getattr(sys, name)
        if stream is None:
            _to_null(number)
            opened = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  for the whole process
            setattr(sys, name, opened)
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")  # file names may be no text


def complain(message: str) -> None:
    """Print the reason of a failed command on standard error."""
    from npu_rl.common.printable import printable

    flush()
    with contextlib.suppress(OSError):  # nobody can be told
        sys.stderr.write(f"npu-rl: {printable(message)}\n")
        sys.stderr.flush()


def flush() -> bool:
    """Flush the output, and return whether all of it was written.

    A stream that fails is reported and redirected to /dev/null, so that Python doesn't fail on it again at exit, with
    exit code 120. A closed pipe isn't reported: its reader needs no more.
    """
    whole = True
    for name, stream in ("standard output", sys.__stdout__), ("standard error", sys.__stderr__):
        if stream is None:  # was closed by the caller
            continue
        try:
            stream.flush()
        except OSError as error:
            whole = False
            _to_null(stream.fileno())
            if error.errno != errno.EPIPE:
                complain(f"{error.strerror}: {name}")
    return whole


def _to_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
