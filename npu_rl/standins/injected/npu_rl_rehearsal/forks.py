"""Work done in forks of this process, so that a crash, an exit, a hang or much output harms nobody.

A fork shares what its parent has imported. Its output is captured, its answer comes through a pipe, and its
process group is killed when it is done, so that nothing it has started lives on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .faults import Caught, describe

_OUTPUT = 4000  # bytes of a fork's output that are kept
_TICK = 0.02  # seconds between looks at the forks

Body = Callable[[], dict[str, Any]]


def run_forks(
    bodies: Mapping[str, Body], *, code: Path, limit: float, at_once: int, patience: float | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run every body in a fork, `at_once` at a time and each for at most `limit` seconds; yield what became of it.

    `outcome` is done (with what the body returned), raised (with what `faults.describe` says), exited or signal
    (with the status), or hung. All but the first come with the end of the fork's output. Forks that work together
    need `patience`: once one has failed, the others wait for it in vain, and get only so many seconds more.
    """
    waiting, running = list(bodies.items()), list[_Fork]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(_Fork(*waiting.pop(0), code, limit))
        select.select([fork.answer for fork in running], [], [], _TICK)
        for fork in running:
            fork.look()
        ended = [(fork.name, fork.found()) for fork in running if fork.done]
        running = [fork for fork in running if not fork.done]
        if patience is not None and any(found["outcome"] != "done" for _, found in ended):
            for fork in running:
                fork.give(patience)
        yield from ended


class _Fork:
    def __init__(self, name: str, body: Body, code: Path, limit: float) -> None:
        self.name, self.begun = name, time.monotonic()
        self.deadline = self.begun + limit
        self.done, self.hung, self.status, self.seconds = False, False, 0, 0.0
        self.answer, answer_end = os.pipe()
        self.output, output_end = os.pipe()
        self._answer = self._output = b""
        self.pid = os.fork()
        if self.pid == 0:
            _work_and_exit(body, code, answer_end, output_end)
        os.close(answer_end)
        os.close(output_end)
        os.set_blocking(self.answer, False)
        os.set_blocking(self.output, False)

    def look(self) -> None:
        """Take what it has said; notice that it has ended, or that its time is up."""
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

    def give(self, seconds: float) -> None:
        """Let it go on for at most so many seconds from now."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def found(self) -> dict[str, Any]:
        """What became of it."""
        found: dict[str, Any] = {"seconds": round(self.seconds, 2)}
        answer = json.loads(self._answer) if self._answer.endswith(b"\n") else None
        if self.hung:
            found["outcome"] = "hung"
        elif answer is not None:  # it got to the end of its work; what followed doesn't matter
            found |= answer
        elif os.WIFSIGNALED(self.status):
            found |= {"outcome": "signal", "status": os.WTERMSIG(self.status)}
        else:
            found |= {"outcome": "exited", "status": os.WEXITSTATUS(self.status)}
        if found["outcome"] != "done":
            found["output"] = self._output.decode("utf-8", "replace")
        return found

    def _kill(self) -> None:
        # The fork isn't reaped yet, so the group's number is still its own.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it died before it had a group of its own
            os.kill(self.pid, signal.SIGKILL)

    def _drain(self) -> None:
        self._answer += _available(self.answer)
        self._output = (self._output + _available(self.output))[-_OUTPUT:]


def _available(pipe: int) -> bytes:
    """What can be read now, without waiting; at most 16 MB at a time, since a fork may print for ever."""
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


def _work_and_exit(body: Body, code: Path, answer: int, output: int) -> None:
    """In the fork: work, answer, and leave without running any exit handler or anything of the parent's."""
    status = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        found = _answer(body, code)
        for stream in (sys.stdout, sys.stderr):
            with Caught():
                stream.flush()
        os.write(answer, json.dumps(found).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def _answer(body: Body, code: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"outcome": "done"}
    with Caught() as attempt:
        found |= body()
    if attempt.problem is not None:
        found = {"outcome": "raised", "type": type(attempt.problem).__name__, "text": ""}
        with Caught():  # an exception whose text can't be had is still an exception
            found |= describe(attempt.problem, code)
    return found
