"""A pool of processes that runs tasks.

In, one line of JSON: [{"task": "MODULE.FUNCTION", "arguments": {...}}, ...]; the function takes its arguments and
Progress, and returns what JSON can hold. Out, JSON lines: any number of {"event": "progress",
"bytes": N}, for each finished task {"event": "result", "index": I, "value": ...}, and for the first that failed
{"event": "error", "index": I, ...} with the fields of TensorError or, from the system, `errno` and `file`. At the end
of its input all end at once: then the process that they work for has ended.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any

from .tensor_error import TensorError

Progress = Callable[[int], None]
"""Report that so many more bytes are done."""

_NO_MEMORY = "A worker reached a limit of its process (`ulimit -v`) or of this machine."
_POLL = 0.2  # seconds between two reports of progress


def main() -> None:
    """Run the tasks of one request. Arguments: the number of processes, and of torch threads in each."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def say(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")

    requests = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_caller, daemon=True).start()
    count, threads = map(int, sys.argv[1:])
    try:
        require("torch")
    except TensorError as error:
        say({"event": "error", **vars(error)})
        return
    # a device can't be used in a fork; torch can, and isn't imported again
    on_cpu = all(request["arguments"].get("of", {}).get("device", "cpu") == "cpu" for request in requests)
    context = multiprocessing.get_context("fork" if sys.platform == "linux" and on_cpu else "spawn")
    done = context.Value("q", 0)
    pool = ProcessPoolExecutor(count, context, _begin, (done, threads))
    indices = {pool.submit(work, request): index for index, request in enumerate(requests)}
    waiting: set[Future[dict[str, Any]]] = set(indices)
    reported = 0
    while waiting:
        finished, waiting = wait(waiting, _POLL, FIRST_COMPLETED)
        bytes_done = done.get_obj().value  # without its lock, which a killed worker may hold
        if bytes_done != reported:
            say({"event": "progress", "bytes": bytes_done - reported})
            reported = bytes_done
        for future in finished:
            answer = _answer(future)
            say({**answer, "index": indices[future]})
            if answer["event"] != "result":
                return  # and the caller kills all of this group
    pool.shutdown()


def _end_with_caller() -> None:
    os.read(0, 1)  # not by sys.stdin, whose lock a fork would wait for
    os.killpg(os.getpid(), signal.SIGKILL)


def require(module: str) -> Any:
    """Import a module. Raises TensorError if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise TensorError(
            f"The interpreter has no {module}",
            where=sys.executable,
            why=str(error),
            hint="Pass one that has it: --python PATH",
            host=True,
        ) from None


_progress: Progress = lambda _count: None  # noqa: E731  set in each process of the pool


def _begin(done: Any, threads: int) -> None:
    """Prepare a process of the pool."""
    global _progress
    import torch

    torch.set_num_threads(threads)

    def progress(count: int) -> None:
        with done.get_lock():
            done.value += count

    _progress = progress


def _answer(future: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return future.result()
    except BrokenProcessPool:
        return _failed(
            "A worker was killed before its task was finished", "The kernel does so for want of memory."
        )


def _failed(what: str, why: str) -> dict[str, Any]:
    hint = "Run again with fewer workers: --workers 1"
    return {"event": "error", **vars(TensorError(what, why=why, hint=hint, host=True))}


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Run one task, and return the event of its result or error."""
    module, _, name = request["task"].rpartition(".")
    try:
        task = getattr(import_module(f".{module}", __package__), name)
        return {"event": "result", "value": task(request["arguments"], _progress)}
    except TensorError as error:
        return {"event": "error", **vars(error)}
    except MemoryError:
        return _failed("There is not enough memory", _NO_MEMORY)
    except OSError as error:
        text, file = error.strerror, str(error.filename or "")
        return {"event": "error", "errno": error.errno, "text": text, "file": file}
    except Exception as error:  # noqa: BLE001  the process that it works for reports it
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's
            return _failed("There is not enough memory", _NO_MEMORY)
        return {"event": "bug", "trace": traceback.format_exc()}
