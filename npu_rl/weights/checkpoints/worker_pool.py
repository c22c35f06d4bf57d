"""Worker processes of `npu_rl_tensors` in the training interpreter, and the tasks they run."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from npu_rl.common.callers_path import callers_path
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import HostError, NpuRlError, WeightsError
from npu_rl.common.process import WorkerProcess
from npu_rl.weights import tensors
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

_JOIN = 0.2  # seconds between two looks at the threads, in which Ctrl-C is noticed


@dataclass(frozen=True)
class Task:
    """A task of npu_rl_tensors.worker.

    Attributes:
        name: As in its table TASKS.
        subject: What it works on, for messages.
    """

    name: str
    arguments: dict[str, Any]
    subject: str


@dataclass(frozen=True)
class Workers:
    """Worker processes that run tasks.

    Attributes:
        python: An interpreter that has torch.
        count: Number of parallel processes.
        threads: Number of torch threads in each process.
        inherit_path: Whether workers inherit this process's PYTHONPATH, which contains CANN's modules.
    """

    python: str
    count: int
    threads: int = 1
    inherit_path: bool = False

    def run(
        self,
        tasks: Sequence[Task],
        on_result: Callable[[Any], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Run all tasks; the first failure stops the others at once. Callbacks run in one thread at a time.

        Raises:
            WeightsError: If the files are at fault.
            HostError: If the machine, the interpreter or a worker is.
        """
        _Round(self, tasks, on_result, on_progress).run()

    def run_here(self, task: Task) -> Any:
        """Run one task on this host and return its value. Raises what `run` raises."""
        found: list[Any] = []
        self.run([task], found.append, lambda _count: None)
        return found[0]

    def describe(self) -> dict[str, Any]:
        """Return a report's description of the workers; empty for workers on this host."""
        return {}

    def command(self) -> list[str]:
        """Return the command of a worker."""
        return [self.python, "-B", "-m", tensors.PACKAGE, str(self.threads)]

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = [str(tensors.ROOT)]
        if self.inherit_path:
            path += callers_path()
        threads = str(self.threads)
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }


def as_npu_rl_error(error: TensorError) -> NpuRlError:
    """Convert an error of npu_rl_tensors to npu-rl's."""
    kind = HostError if error.host else WeightsError
    return kind(error.what, where=error.where or None, why=error.why or None, hint=error.hint or None)


class _Round:
    """One call of `Workers.run`."""

    def __init__(
        self,
        workers: Workers,
        tasks: Sequence[Task],
        on_result: Callable[[Any], None],
        on_progress: Callable[[int], None],
    ) -> None:
        self._workers = workers
        self._tasks = deque(tasks)
        self._on_result = on_result
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._processes: list[WorkerProcess] = []

    def run(self) -> None:
        count = min(self._workers.count, len(self._tasks))
        threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            while self._failure is None and any(thread.is_alive() for thread in threads):
                threads[0].join(_JOIN)
                threads = [thread for thread in threads if thread.is_alive()] or threads
        finally:
            with self._lock:
                self._failure = self._failure or KeyboardInterrupt()  # no further worker is started
                stopped, failure = list(self._processes), self._failure
            for process in stopped:
                process.kill()
            for thread in threads:
                thread.join()
            for process in stopped:
                process.close()
        if not isinstance(failure, KeyboardInterrupt):
            raise failure

    def _drive(self) -> None:
        """Start a worker and pass it tasks until none are left or one has failed."""
        try:
            process = self._start()
            if process is None or self._answer(process, None) is None:
                return
            while (task := self._next()) is not None:
                process.send(json.dumps({"task": task.name, "arguments": task.arguments}))
                value = self._answer(process, task)
                with self._lock:
                    if self._failure is None:
                        self._on_result(value)
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits
            with self._lock:
                self._failure = self._failure or error

    def _start(self) -> WorkerProcess | None:
        with self._lock:
            if self._failure is not None:
                return None
            process = WorkerProcess(self._workers.command(), self._workers.environment())
            self._processes.append(process)
            return process

    def _next(self) -> Task | None:
        with self._lock:
            return self._tasks.popleft() if self._tasks and self._failure is None else None

    def _answer(self, process: WorkerProcess, task: Task | None) -> Any:
        """Return the value of a finished task, or True if the worker is ready."""
        while (line := process.receive()) is not None:
            answer = json.loads(line)
            event = answer.pop("event")
            if event == "progress":
                with self._lock:
                    if self._failure is None:
                        self._on_progress(answer["bytes"])
            elif event == "result":
                return answer["value"]
            elif event == "ready":
                return True
            else:
                raise_answer(event, answer, task)
        raise HostError(
            "A worker exited before its task was finished",
            where=self._workers.python if task is None else task.subject,
            why=process.last_words(),
            hint="signal 9 is often the kernel's, for want of memory: run again with fewer workers (--workers 1)."
            if task
            else "Name another interpreter: --python PATH",
        )


def raise_answer(event: str, answer: dict[str, Any], task: Task | None) -> NoReturn:
    """Raise the npu-rl error that an event describes, if the event is not a task's result."""
    subject = task.subject if task else ""
    if event == "bug":
        raise RuntimeError(f"{subject}\n{answer['trace']}")
    if "errno" in answer:
        with disk_errors(Path(answer["file"] or subject)):
            raise OSError(answer["errno"] or errno.EIO, answer["text"], answer["file"] or subject)
    raise as_npu_rl_error(TensorError(**answer))
