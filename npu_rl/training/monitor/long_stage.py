"""Lines for a stage that blocks npu-rl itself, such as composing the configuration.

A stage of the trainer is reported while its log is followed; nobody follows a log before the trainer has started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_clock import SLOW_FLOOR, Wait


@contextmanager
def long_stage(screen: PlainScreen, text: str, *, first: float = SLOW_FLOOR) -> Iterator[None]:
    """Show a stage, and its duration when it lasts for `first` seconds and each time that has doubled."""
    screen.stage(text)
    began, ended = time.monotonic(), threading.Event()

    def report() -> None:
        due = first
        while not ended.wait(began + due - time.monotonic()):
            waited = time.monotonic() - began
            screen.waiting(Wait(text, waited, limit=0.0, longest=None), slow=True)
            due = 2 * waited

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
