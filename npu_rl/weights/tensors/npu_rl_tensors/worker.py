"""The loop of a worker: reads tasks from standard input and prints progress and results, all as JSON lines.

In: {"task": NAME, "arguments": {...}}. Out: first {"event": "ready"}; for each task any number of
{"event": "progress", "bytes": N}, then {"event": "result", "value": ...} or {"event": "error", ...} with the fields
of TensorError or, from the system, `errno` and `file`. At the end of its input a worker ends at once, within a task
too: then the process that it works for has ended.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .tensor_error import TensorError

Progress = Callable[[int], None]
"""Say that so many more bytes are done."""

TASKS = {
    "audit_group": "audit",
    "convert_file": "conversion.tasks",
    "export_shard": "export",
    "finish_conversion": "conversion.tasks",
    "finish_export": "export",
    "plan_conversion": "conversion.tasks",
    "cast_shard": "cast",
    "megatron_files": "megatron_files",
    "model_tensors": "model_tensors",
    "tied_head": "tied_head",
    "plan_audit": "audit",
    "plan_export": "export",
}
"""Module of each task, a function of that name: it takes its arguments and Progress, and returns what JSON can hold."""

_NO_MEMORY = TensorError(
    "There is not enough memory",
    why="A worker reached a limit of its process (`ulimit -v`) or of this machine.",
    hint="Run again with fewer workers: --workers 1",
    host=True,
)


def main() -> None:
    """Run tasks until the input ends. The only argument is the number of torch threads."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def say(event: str, **fields: Any) -> None:
        out.write(json.dumps({"event": event, **fields}) + "\n")

    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    try:
        prepare(int(sys.argv[1]))
    except TensorError as error:
        say("error", **vars(error))
        return
    say("ready")
    while True:
        work(json.loads(tasks.get()), say)


def _read(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


def prepare(threads: int) -> None:
    """Import torch and set its number of threads. Raises TensorError if torch is missing."""
    try:
        import torch
    except ImportError as error:
        raise TensorError(
            "The interpreter has no torch",
            where=sys.executable,
            why=str(error),
            hint="Pass one that has it: --python PATH",
            host=True,
        ) from None
    torch.set_num_threads(threads)


def work(request: dict[str, Any], say: Callable[..., None]) -> None:
    """Run one task, and report its progress and its result or error."""
    name = request["task"]
    try:
        task = getattr(import_module(f".{TASKS[name]}", __package__), name)
        value = task(request["arguments"], lambda count: say("progress", bytes=count))
    except TensorError as error:
        say("error", **vars(error))
    except MemoryError:
        say("error", **vars(_NO_MEMORY))
    except OSError as error:
        say("error", errno=error.errno, text=error.strerror, file=str(error.filename or ""))
    except Exception as error:  # noqa: BLE001  the process that it works for reports it
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's
            say("error", **vars(_NO_MEMORY))
        else:
            say("bug", trace=traceback.format_exc())
    else:
        say("result", value=value)
