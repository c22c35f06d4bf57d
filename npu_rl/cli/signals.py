"""What SIGINT (Ctrl-C), SIGTERM and SIGHUP do: a command ends quietly, with 128 and the signal's number.

One that the caller ignores stays ignored: nohup ignores SIGHUP, a shell SIGINT for what it starts with `&`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, "FrameType | None"], None]


def end_at_once() -> None:
    """End the process then and there. For times at which nothing is begun: an exception that comes up amid an
    import, or while Python ends, is printed or lost."""
    _handle(lambda number, _frame: os._exit(128 + number))


def interrupt(came: list[int]) -> None:
    """Raise KeyboardInterrupt in the main thread, so that what is staged is removed; the signal's number is added
    to `came` before."""

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    _handle(note)


def _handle(handler: Handler) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
