"""Run functions in forks of this process, which contain crashes, exits, hangs and excessive output.

A fork shares what its parent has imported. Its output is captured, its result comes through a pipe, and its process
group is killed at the end, so that nothing it started remains.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .faults import CatchAll, describe_error

_OUTPUT_LIMIT = 4000  # last bytes of a fork's output that are kept
_POLL_INTERVAL = 0.02  # seconds between checks of the forks

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None, use_errno=True).prctl

Body = Callable[[], dict[str, Any]]


def run_forks(
    bodies: Mapping[str, Body], *, code: Path, limit: float, at_once: int, grace: float | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run every function in a fork, and yield its name and outcome.

    `outcome` is done (with what the body returned), raised (with `faults.describe_error`), exited or signal (with the
    status), or hung. All but the first have the end of the fork's output.

    Args:
        bodies: Functions by name.
        code: The code folder.
        limit: Seconds for each fork.
        at_once: Number of forks at a time.
        grace: Seconds for the other forks after one has failed; for forks that work together and would wait in vain.
    """
    waiting, running = list(bodies.items()), list[_Fork]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(_Fork(*waiting.pop(0), code, limit))
        select.select([fork.answer for fork in running], [], [], _POLL_INTERVAL)
        for fork in running:
            fork.poll()
        ended = [(fork.name, fork.outcome()) for fork in running if fork.done]
        running = [fork for fork in running if not fork.done]
        if grace is not None and any(found["outcome"] != "done" for _, found in ended):
            for fork in running:
                fork.shorten_deadline(grace)
        yield from ended


class _Fork:
    def __init__(self, name: str, body: Body, code: Path, limit: float) -> None:
        self.name, self.begun = name, time.monotonic()
        self.deadline = self.begun + limit
        self.done, self.hung, self.status, self.seconds = False, False, 0, 0.0
        self.answer, answer_end = os.pipe()
        self.output, output_end = os.pipe()
        self._run_body = self._output = b""
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _work_and_exit(body, code, answer_end, output_end, parent)
        os.close(answer_end)
        os.close(output_end)
        os.set_blocking(self.answer, False)
        os.set_blocking(self.output, False)

    def poll(self) -> None:
        """Read the fork's output, and reap the fork once it has ended or its time is up."""
        self._drain()
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        self.hung = not ended and time.monotonic() > self.deadline
        if ended or self.hung:
            self._kill()
            self.status = os.waitpid(self.pid, 0)[1]
            self._drain()
            os.close(self.answer)
            os.close(self.output)
            self.seconds, self.done = time.monotonic() - self.begun, True

    def shorten_deadline(self, seconds: float) -> None:
        """Limit the fork's remaining time to the given seconds."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def outcome(self) -> dict[str, Any]:
        """Return the fork's outcome."""
        found: dict[str, Any] = {"seconds": round(self.seconds, 2)}
        answer = json.loads(self._run_body) if self._run_body.endswith(b"\n") else None
        if self.hung:
            found["outcome"] = "hung"
        elif answer is not None:  # the body has ended; what the process did afterwards does not matter
            found |= answer
        elif os.WIFSIGNALED(self.status):
            found |= {"outcome": "signal", "status": os.WTERMSIG(self.status)}
        else:
            found |= {"outcome": "exited", "status": os.WEXITSTATUS(self.status)}
        if found["outcome"] != "done":
            found["output"] = self._output.decode("utf-8", "replace")
        return found

    def _kill(self) -> None:
        # The fork is not reaped yet, so the id of its process group can't be reused.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it died before it had its own group
            os.kill(self.pid, signal.SIGKILL)

    def _drain(self) -> None:
        self._run_body += _available(self.answer)
        self._output = (self._output + _available(self.output))[-_OUTPUT_LIMIT:]


def _available(pipe: int) -> bytes:
    """Return the data that can be read without waiting, at most 16 MB, since a fork may print endlessly."""
    chunks = []
    for _ in range(256):
        try:
            chunk = os.read(pipe, 65536)
        except BlockingIOError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


def _work_and_exit(body: Body, code: Path, answer: int, output: int, parent: int) -> None:
    """Run in the fork: call the function, send its result, and exit without the parent's exit handlers.

    The fork is killed if its parent dies, for nobody else knows its process group: an interrupted level left it behind.
    """
    status = 1
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # which died before
            return
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        found = _run_body(body, code)
        for stream in (sys.stdout, sys.stderr):
            with CatchAll():
                stream.flush()
        os.write(answer, json.dumps(found).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def _run_body(body: Body, code: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"outcome": "done"}
    with CatchAll() as attempt:
        found |= body()
    if attempt.problem is not None:
        found = {"outcome": "raised", "type": type(attempt.problem).__name__, "text": ""}
        with CatchAll():  # the exception's own methods may raise
            found |= describe_error(attempt.problem, code)
    return found
