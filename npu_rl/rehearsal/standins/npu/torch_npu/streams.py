"""Streams and events of a device that does one thing after the other, so that everything awaited is done already."""

# ruff: noqa: ARG001, ARG002  the signatures are torch_npu's

from __future__ import annotations

import time
from types import TracebackType
from typing import Any


def _nothing(*_: Any) -> None:
    """Do nothing: no work is outstanding."""


class Event:
    """A time on the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self._timed = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Record the current time."""
        self._at = time.perf_counter()

    def query(self) -> bool:
        """Return True: all work before it is done."""
        return True

    wait = synchronize = _nothing

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds between two recorded events that were created with enable_timing."""
        if not (self._timed and end_event._timed):
            raise RuntimeError("both events must be created with enable_timing=True")
        if self._at is None or end_event._at is None:
            raise RuntimeError("both events must be recorded first")
        return (end_event._at - self._at) * 1000


class Stream:
    """The only execution order of a CPU."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = device
        self.priority = priority
        self.npu_stream = 0
        self.cuda_stream = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True: all its work is done."""
        return True

    wait_event = wait_stream = synchronize = _nothing


_the_stream = Stream()


def current_stream(device: Any = None) -> Stream:
    """Return the only stream."""
    return _the_stream


def stream(chosen: Stream | None) -> Stream:
    """Return a context for work on `chosen`; there is only one stream."""
    return chosen or _the_stream


def set_stream(chosen: Stream) -> None:
    """Do nothing: there is only one stream."""
