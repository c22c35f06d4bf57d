"""Running of vendor commands, which may hang or print endlessly."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.process import start_piped

_AFTER_KILL = 0.5  # seconds; a process that waits inside a device driver outlives SIGKILL
_LOOK = 0.05  # seconds between looks at whether the command has ended


@dataclass(frozen=True)
class BoundedOutcome:
    """The result of a command.

    Attributes:
        output: What it printed on both outputs, up to a bound.
        code: Exit status, -N for signal N; None if it was given up or could not be started.
        problem: Why it was given up or could not be started; "" otherwise.
    """

    output: bytes
    code: int | None
    problem: str = ""

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output.decode("utf-8", "replace")


def run_bounded(
    argv: list[str], env: Mapping[str, str], cwd: Path, *, seconds: float, most: int = 1 << 20
) -> BoundedOutcome:
    """Run a command without standard input, with limits on its time and on the output that is kept.

    It ends when the command does, even if a background process of it keeps the pipe open. Its process group is killed
    in the end, background processes included. A process that survives that, inside a device driver's call, is left
    behind and not waited for.
    """
    deadline = time.monotonic() + seconds
    try:
        process = start_piped(argv, env, cwd)
    except HostError as error:
        return BoundedOutcome(b"", None, f"it can't be started: {error.why or error.what}")
    try:
        output, problem = _read(process, deadline, most)
        if not problem and not _has_ended(process, max(deadline - time.monotonic(), 0.1)):
            problem = "late"
        code = None if problem else process.returncode
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        _has_ended(process, _AFTER_KILL)
    words = {
        "late": f"it did not end within {seconds:g} seconds",
        "long": f"it printed more than {most} bytes",
    }
    return BoundedOutcome(output, code, words.get(problem, ""))


def _read(process: Any, deadline: float, most: int) -> tuple[bytes, str]:
    """Return the data read from a process's pipe, and the reason if it was not read to its end."""
    kept = bytearray()
    stream = process.stdout
    with stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            has_ended = process.poll() is not None  # before the look: what it wrote is in the pipe then
            wait = 0 if has_ended else min(_LOOK, max(deadline - time.monotonic(), 0))
            if not selector.select(wait):
                if has_ended:
                    return bytes(kept), ""
                if time.monotonic() >= deadline:
                    return bytes(kept), "late"
                continue
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                return bytes(kept), ""
            kept += part[: most - len(kept)]
            if len(kept) >= most:
                return bytes(kept), "long"


def _has_ended(process: Any, seconds: float) -> bool:
    """Wait for a process up to a time limit; return whether it has ended."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True
