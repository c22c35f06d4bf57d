"""Processes that do algebra: one server without threads, and workers that it forks, kills and replaces.

The server imports the library once, and forks a worker in a few milliseconds. CPU time per answer is limited: the
kernel ends a worker that exceeds it (ITIMER_PROF with its default action), even inside C code, and a busy machine
changes no reward. Memory is limited as well. The server ends with the process that started it, because that process's
end of the control socket closes however it died.

A caller sends one line of JSON per connection, `[limit, [[right, given], ...]]`, and receives `[index, verdict]` per
pair.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

EQUAL, UNEQUAL, LIMIT, FAILED = "equal", "unequal", "limit", "failed"

MEMORY = 2 << 30  # bytes of address space of a worker
TASKS = 4000  # answers until a worker is replaced: SymPy's caches only grow
WALL = 20.0  # a worker that sleeps or swaps gets this many times its CPU limit, and ten seconds at least
POLL = 2.0  # seconds between two looks at whether the parent lives


@dataclass(eq=False)
class _Caller:
    """Connection of one call, with the bytes received and the bytes still to send."""

    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    to_send: bytearray = field(default_factory=bytearray)
    gone: bool = False


@dataclass(frozen=True)
class _Task:
    caller: _Caller
    index: int
    right: str
    given: str
    limit: float
    again: bool = False


@dataclass(eq=False)
class _Worker:
    pid: int
    sock: socket.socket
    task: _Task | None = None
    until: float = 0.0
    done: int = 0


class Server:
    """Scheduler of the workers, which get tasks in order of arrival.

    control: the socket on which new connections arrive.
    """

    def __init__(self, control: socket.socket, workers: int) -> None:
        self.control = control
        self.most = workers
        self.parent = os.getppid()
        self.events = selectors.DefaultSelector()
        self.events.register(control, selectors.EVENT_READ)
        self.callers: set[_Caller] = set()
        self.workers: set[_Worker] = set()
        self.waiting: deque[_Task] = deque()

    def serve(self) -> None:
        """Serve until the parent is gone. No process outlives the call."""
        try:
            while os.getppid() == self.parent:
                for key, mask in self.events.select(POLL):
                    if key.fileobj is self.control:
                        if not self._accept():
                            return
                    elif isinstance(key.data, _Caller):
                        self._talk(key.data, mask)
                    elif key.data in self.workers:
                        self._result(key.data)
                self._end_sleepers()
                self._deal()
        finally:
            for worker in list(self.workers):
                self._bury(worker)

    def _accept(self) -> bool:
        """Accept a connection from the control socket; return False when the parent has closed it."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        except ConnectionError:
            return False
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            caller = _Caller(sock)
            self.callers.add(caller)
            self.events.register(sock, selectors.EVENT_READ, caller)
        return bool(data)

    def _talk(self, caller: _Caller, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                del caller.to_send[: caller.sock.send(caller.to_send)]
            if mask & selectors.EVENT_READ:
                data = caller.sock.recv(1 << 20)
                if not data:
                    return self._drop(caller)
                caller.received += data
                if data.endswith(b"\n"):
                    limit, pairs = json.loads(caller.received)
                    caller.received.clear()
                    self.waiting.extend(_Task(caller, i, r, g, limit) for i, (r, g) in enumerate(pairs))
        except BlockingIOError:
            pass
        except ConnectionError:
            return self._drop(caller)
        self._listen(caller)
        return None

    def _listen(self, caller: _Caller) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.to_send else 0)
        if not caller.gone and self.events.get_key(caller.sock).events != wanted:
            self.events.modify(caller.sock, wanted, caller)

    def _drop(self, caller: _Caller) -> None:
        """Forget a caller whose process has ended, or that needs no more verdicts."""
        caller.gone = True
        self.callers.discard(caller)
        self.events.unregister(caller.sock)
        caller.sock.close()

    def _deal(self) -> None:
        idle = [worker for worker in self.workers if worker.task is None]
        while self.waiting:
            if self.waiting[0].caller.gone:
                self.waiting.popleft()
                continue
            if not idle and len(self.workers) >= self.most:
                return
            worker = idle.pop() if idle else self._fork()
            worker.task = task = self.waiting.popleft()
            worker.until = time.monotonic() + max(10.0, WALL * task.limit)
            with contextlib.suppress(ConnectionError):  # if it has just died, its end is read next
                worker.sock.sendall(json.dumps([task.limit, task.right, task.given]).encode() + b"\n")

    def _result(self, worker: _Worker) -> None:
        """Handle a worker that has sent a verdict or died."""
        try:
            line = worker.sock.recv(64)
        except ConnectionError:
            line = b""
        if line:
            self._answer(worker, line.decode().strip())
            worker.done += 1
            if worker.done >= TASKS:
                self._bury(worker)
            return
        at_limit = self._bury(worker) == signal.SIGPROF
        if worker.task and not at_limit and not worker.task.again:  # it may be somebody else who ended it
            self.waiting.appendleft(replace(worker.task, again=True))
        else:
            self._answer(worker, LIMIT if at_limit else FAILED)

    def _answer(self, worker: _Worker, verdict: str) -> None:
        task, worker.task = worker.task, None
        if task and not task.caller.gone:
            task.caller.to_send += json.dumps([task.index, verdict]).encode() + b"\n"
            self._listen(task.caller)

    def _end_sleepers(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self.workers if w.task and w.until < now]:
            self._bury(worker)
            self._answer(worker, LIMIT)

    def _bury(self, worker: _Worker) -> int:
        """End a worker that is alive, and wait for it. Returns the signal that ended it, 0 for none."""
        self.workers.discard(worker)
        self.events.unregister(worker.sock)
        worker.sock.close()
        ended, status = os.waitpid(worker.pid, os.WNOHANG)
        if not ended:
            os.kill(worker.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
            _, status = os.waitpid(worker.pid, 0)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                self.events.close()
                keep = os.dup2(theirs.fileno(), 3)
                os.closerange(4, self._highest(theirs) + 1)  # else the others would not see their ends close
                _work(socket.socket(fileno=keep))
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        worker = _Worker(pid, ours)
        self.workers.add(worker)
        self.events.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _highest(self, newest: socket.socket) -> int:
        """Return the highest descriptor that this server opened."""
        opened = [newest, self.control, *(w.sock for w in self.workers), *(c.sock for c in self.callers)]
        return max(sock.fileno() for sock in opened)


def _work(sock: socket.socket) -> None:
    """Run a worker: read a task, send its verdict, until the server is gone."""
    from .symbolic import same_by_algebra

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sock.makefile("rb"):
        limit, right, given = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            verdict = EQUAL if same_by_algebra(right, given) else UNEQUAL
        except (MemoryError, RecursionError):
            verdict = LIMIT
        except Exception:  # noqa: BLE001 - anything a parser of foreign text may raise: the answer is not equal
            verdict = FAILED
        signal.setitimer(signal.ITIMER_PROF, 0)
        sock.sendall(verdict.encode() + b"\n")


def main(arguments: list[str]) -> None:
    """Run the server. arguments: the control socket's number, and the maximum number of workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training, which then closes the socket
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    control = socket.socket(fileno=int(arguments[0]))
    symbolic: Any = importlib.import_module(".symbolic", __package__)
    symbolic.load()
    gc.collect()
    gc.freeze()  # so that workers share these pages
    Server(control, int(arguments[1])).serve()
