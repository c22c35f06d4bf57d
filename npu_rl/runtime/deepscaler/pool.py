"""Client of the worker processes that compare answers (`workers`), for any thread and for processes that fork.

The server starts with the first comparison, as a fresh interpreter: a fork of a training process would inherit its
threads' locks and its device. It keeps running for later comparisons, and ends with this process.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from .symbolic import LIBRARY
from .workers import EQUAL, FAILED, LIMIT, UNEQUAL

__all__ = ["EQUAL", "FAILED", "LIMIT", "UNEQUAL", "verdicts"]

ATTEMPTS = 3
# Each may take 2 GiB for a moment (`workers.MEMORY`), on a host whose memory holds the offloaded state.
MOST_WORKERS = 32
_START = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main(sys.argv[3:])
"""


class _Started:
    """Running server, with this end of its control socket."""

    def __init__(self) -> None:
        if importlib.util.find_spec(LIBRARY) is None:
            raise ModuleNotFoundError(
                "The deepscaler reward compares answers with math-verify, which is not installed here: "
                "pip install 'math-verify==0.9.0' antlr4-python3-runtime==4.9.3",
                name=LIBRARY,
            )
        self.control, theirs = socket.socketpair()
        paths = [str(Path(p).absolute()) for p in sys.path]  # a relative one is meant from here
        module = f"{__package__}.workers"
        arguments = [json.dumps(paths), module, str(theirs.fileno()), str(workers_wanted())]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip

    def connect(self) -> socket.socket:
        """Open a connection for one call. Raises OSError if the server is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"c"], [theirs.fileno()])
        return ours

    def end(self) -> None:
        """Close the control socket, and wait until the server has ended its workers and itself."""
        self.control.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_lock = threading.Lock()
_started: _Started | None = None


def workers_wanted() -> int:
    """Return NPU_RL_DEEPSCALER_WORKERS, or the number of cores that this process may use, 32 at most."""
    named = os.environ.get("NPU_RL_DEEPSCALER_WORKERS", "").strip()
    if named:
        if not (named.isdecimal() and int(named)):
            raise ValueError(f"NPU_RL_DEEPSCALER_WORKERS={named!r}: write a number of processes")
        return int(named)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_WORKERS)


def verdicts(pairs: Sequence[tuple[str, str]], limit_s: float) -> list[str]:
    """Return a verdict per pair of right and given answer: equal, unequal, limit (it took too long) or failed.

    limit_s: seconds of CPU time per pair. Raises RuntimeError if the server ends several times, which no answer can
    cause, and ModuleNotFoundError if the library is missing.
    """
    found: dict[int, str] = {}
    for _ in range(ATTEMPTS):
        missing = [number for number in range(len(pairs)) if number not in found]
        if not missing:
            break
        server = _server()
        for position, verdict in _ask(server, [pairs[number] for number in missing], limit_s):
            found[missing[position]] = verdict
        if len(found) < len(pairs):
            _forget(server)
    if len(found) < len(pairs):
        raise RuntimeError("The processes that compare answers ended; see their standard error for the cause")
    return [found[number] for number in range(len(pairs))]


def _server() -> _Started:
    global _started
    with _lock:
        if _started is None:
            _started = _Started()
        return _started


def _forget(server: _Started) -> None:
    """Forget a server that ended by itself, so that the next comparison starts another."""
    global _started
    with _lock:
        if _started is server:
            _started = None
            server.end()


def _ask(server: _Started, pairs: list[tuple[str, str]], limit_s: float) -> list[tuple[int, str]]:
    """Return the server's verdicts by pair; some are missing if it ends before all are decided."""
    answers: list[tuple[int, str]] = []
    try:
        with server.connect() as connection:
            connection.sendall(json.dumps([limit_s, pairs]).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    position, verdict = json.loads(line)
                    answers.append((position, verdict))
                    if len(answers) == len(pairs):
                        break
    except OSError:
        pass
    return answers


def close() -> None:
    """End the server and its workers now. The next comparison starts a new server."""
    global _started
    with _lock:
        server, _started = _started, None
    if server:
        server.end()


def _after_fork() -> None:
    """Close this fork's copy of the parent's control socket, which would keep the server alive after the parent."""
    global _started, _lock
    _lock = threading.Lock()
    if _started:
        _started.control.close()
        _started.process.returncode = 0  # not this process's child
        _started = None


atexit.register(close)
os.register_at_fork(after_in_child=_after_fork)
