"""Workers that are no processes, and the commands with them: tasks in the tests' own, which saves importing torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from npu_rl.weights.checkpoints.audit_weights import AuditOptions, audit_weights
from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
from npu_rl.weights.checkpoints.output_folder import NOTE
from npu_rl.weights.checkpoints.worker_pool import Task, Workers, as_npu_rl_error
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

DIST, HF = OutputLayout("torch_dist"), OutputLayout("hf")


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
        for name in ("audit", "conversion.tasks"):
            import_module(f"npu_rl.weights.tensors.npu_rl_tensors.{name}").opened.cache_clear()
        for task in tasks:
            module, _, name = task.name.rpartition(".")
            function = getattr(import_module(f"npu_rl.weights.tensors.npu_rl_tensors.{module}"), name)
            try:
                value = function(json.loads(json.dumps(task.arguments)), on_progress)
            except TensorError as error:
                raise as_npu_rl_error(error) from error
            on_result(json.loads(json.dumps(value)))


def unfinish(folder: Path) -> None:
    """Make an output look as if it had been killed before its end."""
    note = json.loads((folder / NOTE).read_text())
    del note["files"]
    (folder / NOTE).write_text(json.dumps(note))


def convert(
    source: Path,
    target: Path,
    layout: OutputLayout = DIST,
    config: Path | None = None,
    workers: Workers | None = None,
) -> dict[str, Any]:
    return convert_weights(ConvertOptions(source, target, layout, config), workers or InlineWorkers())


def cast(source: Path, target: Path, workers: Workers | None = None) -> dict[str, Any]:
    options = ConvertOptions(source, target, HF, command="cast")
    return convert_weights(options, workers or InlineWorkers())


def audit(
    a: Path, b: Path, config: Path | None = None, extend: bool = True, workers: Workers | None = None
) -> dict[str, Any]:
    options = AuditOptions(a, b, config, extend, "npu-rl weights audit")
    return audit_weights(options, workers or InlineWorkers())


def equal(a: Path, b: Path, config: Path | None = None, extend: bool = True) -> bool:
    return bool(audit(a, b, config, extend)["result"] == "equal")


def interpreter(folder: Path, script: str) -> str:
    """A script of the shell in place of python."""
    path = folder / "python"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return str(path)


def limited(folder: Path) -> str:
    """A python whose files may not grow above 16 kB."""
    return interpreter(folder, f'ulimit -f 16\nexec {sys.executable} "$@"')
