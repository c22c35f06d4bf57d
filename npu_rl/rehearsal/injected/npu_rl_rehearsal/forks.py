"""Run functions in forks of this process, which contain crashes, exits, hangs and excessive output.

A fork shares what its parent has imported. Its output and its result go to files of its own, and its process group is
killed at the end, so that nothing it started remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .faults import CatchAll, describe_error

_OUTPUT_LIMIT = 4000  # last bytes of a fork's output that are kept
_FILE_LIMIT = 256 << 20  # bytes of a file that a fork may write: one may print endlessly
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
        time.sleep(_POLL_INTERVAL)
        for fork in list(running):
            found = fork.outcome()
            if found is None:
                continue
            running.remove(fork)
            if grace is not None and found["outcome"] != "done":
                for other in running:
                    other.deadline = min(other.deadline, time.monotonic() + grace)
            yield fork.name, found


class _Fork:
    def __init__(self, name: str, body: Body, code: Path, limit: float) -> None:
        self.name, self.begun = name, time.monotonic()
        self.deadline = self.begun + limit
        self.folder = Path(tempfile.mkdtemp())
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _work_and_exit(body, code, self.folder, parent)

    def outcome(self) -> dict[str, Any] | None:
        """Return the outcome once the fork has ended or its time is up, and kill what it started; else None."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if not ended and time.monotonic() <= self.deadline:
            return None
        # The fork is not reaped yet, so the id of its process group can't be reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it died before it had its own group
            os.killpg(self.pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        found: dict[str, Any] = {"seconds": round(time.monotonic() - self.begun, 2)}
        answer = self.folder / "answer"
        if not ended:
            found["outcome"] = "hung"
        elif answer.is_file():  # the body has ended; what the process did afterwards does not matter
            found |= json.loads(answer.read_text())
        elif os.WIFSIGNALED(status):
            found |= {"outcome": "signal", "status": os.WTERMSIG(status)}
        else:
            found |= {"outcome": "exited", "status": os.WEXITSTATUS(status)}
        if found["outcome"] != "done":
            found["output"] = _last_bytes(self.folder / "output").decode("utf-8", "replace")
        return found


def _last_bytes(file: Path) -> bytes:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _OUTPUT_LIMIT))
        return stream.read()


def _work_and_exit(body: Body, code: Path, folder: Path, parent: int) -> None:
    """Run in the fork: call the function, write its result, and exit without the parent's exit handlers.

    The fork is killed if its parent dies, for nobody else knows its process group: an interrupted level left it behind.
    """
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # which died before
            return
        os.setsid()
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_LIMIT, _FILE_LIMIT))
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        found = run_body(body, code)
        for stream in (sys.stdout, sys.stderr):
            with CatchAll():
                stream.flush()
        (folder / "unfinished").write_text(json.dumps(found))
        (folder / "unfinished").rename(folder / "answer")
    finally:
        os._exit(1)


def run_body(body: Body, code: Path) -> dict[str, Any]:
    """Return what a function returned, or the exception that it raised, as `run_forks` does."""
    found: dict[str, Any] = {"outcome": "done"}
    with CatchAll() as attempt:
        found |= body()
    if attempt.problem is not None:
        found = {"outcome": "raised", "type": type(attempt.problem).__name__, "text": ""}
        with CatchAll():  # the exception's own methods may raise
            found |= describe_error(attempt.problem, code)
    return found
