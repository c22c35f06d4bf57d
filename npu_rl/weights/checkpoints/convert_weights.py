"""`weights cast` and `weights convert`: write a checkpoint in another format, file by file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.disk import disk_errors
from npu_rl.weights.checkpoints.other_files import OtherFiles, other_files
from npu_rl.weights.checkpoints.output_folder import (
    NOTE,
    Command,
    NoProgress,
    OutputFolder,
    WorkProgress,
    made_by,
    require_apart,
    require_space,
)
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout


@dataclass(frozen=True)
class ConvertOptions:
    """The input and the target of a cast or conversion.

    Attributes:
        config: Folder of the model's config.json, where the input has none.
        experts_over_tensor: As of an audit, of a legacy input.
        command: A cast keeps the shards of the input.
        device: What casts, in a cast.
        metadata: Further entries of each shard's header.
    """

    source: Path
    target: Path
    layout: OutputLayout
    config: Path | None = None
    experts_over_tensor: bool = True
    command: Command = "convert"
    device: str = "cpu"
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        """The folder with the model's config.json and tokenizer."""
        return self.config or self.source

    def to_json(self) -> dict[str, Any]:
        """Return the options as a worker's task takes them."""
        return {
            "command": self.command,
            "input": str(self.source),
            "config": None if self.config is None else str(self.config),
            "layout": self.layout.to_json(),
            "experts_over_tensor": self.experts_over_tensor,
            "device": self.device,
        }


def convert_weights(
    options: ConvertOptions, workers: Workers, watch: WorkProgress | None = None
) -> dict[str, Any]:
    """Cast or convert a checkpoint, or continue what was interrupted. Nothing of another one is overwritten.

    Returns the report: what `--json` prints.

    What makes the files a checkpoint (.metadata, the tracker, the index) is written last.

    Raises:
        UsageError: If the folders lie in one another, or the output's has other files.
        WeightsError: For an input that is damaged, not the model's or has NaN or infinity, and an output of another
            input.
        HostError: If the disk is too small or fails, or the interpreter has no torch.
    """
    target = options.target
    require_apart(options.source, target)
    started = time.monotonic()
    arguments = {"of": options.to_json(), "output": str(target), "metadata": dict(options.metadata)}
    plan = workers.run_one(Task("conversion.tasks.plan_output", arguments, str(options.source)))
    files: dict[str, int] = plan["files"]
    others = OtherFiles((), ())
    if options.layout.format == "hf":
        with disk_errors(options.model):
            others = other_files(options.model)
    beside = others.size(options.model)
    if not (target / NOTE).is_file():
        require_space(target, sum(files.values()) + beside)
    report = {
        **made_by(),
        **plan["report"],
        "output": {"path": str(target), **options.layout.to_json()},
        "digest": plan["digest"],
        "files": len(files),
        "files_kept": len(files),
        "bytes": sum(files.values()),
        "copied": list(others.copied),
        "not_copied": list(others.left),
        "seconds": 0.0,
    }
    with contextlib.closing(OutputFolder(target, options.command, options.source, plan["digest"])) as output:
        if output.files is not None:
            output.require_unchanged()
            return report

        def task(name: str) -> Task:
            return Task("conversion.tasks.write_output", {**arguments, "file": name}, str(target / name))

        kept = output.write(files, beside, task, workers, watch or NoProgress())
        others.copy(options.model, target)
        workers.run_one(Task("conversion.tasks.finish_output", arguments, str(target)))
        output.finish([*files, *others.copied, *plan["last"]])
        return {**report, "files_kept": kept, "seconds": round(time.monotonic() - started, 3)}
