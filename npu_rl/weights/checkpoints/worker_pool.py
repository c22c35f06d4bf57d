"""Tasks of `npu_rl_tensors`, run by a child in the training interpreter with a pool of processes."""

from __future__ import annotations

import errno
import json
import os
import sys
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

_MOST = 16  # workers by default: more wait for one disk


@dataclass(frozen=True)
class Task:
    """A task of npu_rl_tensors.worker.

    Attributes:
        name: Module of `npu_rl_tensors` and function in it.
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
        """Run all tasks; the first failure ends the others at once.

        Raises:
            WeightsError: If the files are at fault.
            HostError: If the machine, the interpreter or a worker is.
        """
        if not tasks:
            return
        process = WorkerProcess(self.command(min(self.count, len(tasks))), self.environment())
        try:
            requests = [{"task": task.name, "arguments": task.arguments} for task in tasks]
            process.send(json.dumps(requests))
            left = len(tasks)
            while left:
                line = process.receive()
                if line is None:
                    raise HostError(
                        "The process that reads the weights has ended",
                        where=self.python,
                        why=process.last_words(),
                        hint="Name another interpreter: --python PATH",
                    )
                answer = json.loads(line)
                event, index = answer.pop("event"), answer.pop("index", None)
                if event == "progress":
                    on_progress(answer["bytes"])
                elif event == "result":
                    on_result(answer["value"])
                    left -= 1
                else:
                    _raise(event, answer, "" if index is None else tasks[index].subject)
        finally:
            process.kill()
            process.close()

    def run_one(self, task: Task) -> Any:
        """Run one task and return its value. Raises what `run` raises."""
        found: list[Any] = []
        self.run([task], found.append, lambda _count: None)
        return found[0]

    def command(self, count: int) -> list[str]:
        """Return the command of the child with a pool of `count` processes."""
        return [self.python, "-B", "-m", tensors.PACKAGE, str(count), str(self.threads)]

    def environment(self) -> dict[str, str]:
        """Return the environment of the child."""
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


def pool_of(python: str | None, count: int | None, *, inherit_path: bool = False) -> Workers:
    """Return the requested number of workers, by default one per usable CPU, and divide the CPUs among them."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = count or min(cpus, _MOST)
    return Workers(python or sys.executable, count, max(1, cpus // count), inherit_path)


def as_npu_rl_error(error: TensorError) -> NpuRlError:
    """Convert an error of npu_rl_tensors to npu-rl's."""
    kind = HostError if error.host else WeightsError
    return kind(error.what, where=error.where or None, why=error.why or None, hint=error.hint or None)


def _raise(event: str, answer: dict[str, Any], subject: str) -> NoReturn:
    """Raise the npu-rl error that the end of a task describes."""
    if event == "bug":
        raise RuntimeError(f"{subject}\n{answer['trace']}")
    if "errno" in answer:
        with disk_errors(Path(answer["file"] or subject)):
            raise OSError(answer["errno"] or errno.EIO, answer["text"], answer["file"] or subject)
    raise as_npu_rl_error(TensorError(**{**answer, "where": answer["where"] or subject}))
