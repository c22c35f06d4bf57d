"""Handling of SIGINT (Ctrl-C), SIGTERM and SIGHUP: a command ends quietly, with 128 and the signal's number.

A signal that the caller ignores stays ignored: nohup ignores SIGHUP, and a shell SIGINT for commands with `&`.
"""

from __future__ import annotations

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
