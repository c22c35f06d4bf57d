"""Workers that are no processes: tasks of npu_rl_tensors in the tests' own, which saves importing torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from npu_rl.weights.checkpoints.worker_pool import Task, Workers, as_npu_rl_error
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from npu_rl.weights.tensors.npu_rl_tensors.worker import TASKS


class InlineWorkers(Workers):
    """Runs the tasks one after the other; arguments and values go through JSON as they do between processes."""

    def __init__(self) -> None:
        super().__init__("python", 1)

    def run(
        self,
        tasks: Sequence[Task],
        on_result: Callable[[Any], None],
        on_progress: Callable[[int], None],
    ) -> None:
        import_module("npu_rl.weights.tensors.npu_rl_tensors.audit").opened.cache_clear()
        for task in tasks:
            module = import_module(f"npu_rl.weights.tensors.npu_rl_tensors.{TASKS[task.name]}")
            function = getattr(module, task.name)
            try:
                value = function(json.loads(json.dumps(task.arguments)), on_progress)
            except TensorError as error:
                raise as_npu_rl_error(error) from error
            on_result(json.loads(json.dumps(value)))
