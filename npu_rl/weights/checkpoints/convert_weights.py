"""`weights convert`: write a checkpoint in another format, file by file."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.disk import disk_errors
from npu_rl.weights.checkpoints.other_files import OtherFiles, other_files
from npu_rl.weights.checkpoints.output_folder import (
    NOTE,
    OutputFolder,
    WorkProgress,
    made_by,
    require_apart,
    require_space,
)
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG


@dataclass(frozen=True)
class ConvertOptions:
    """The input and the target of a conversion.

    Attributes:
        config: Folder of the model's config.json, where the input has none.
        experts_over_tensor: As of an audit, of a legacy input.
    """

    source: Path
    target: Path
    layout: OutputLayout
    config: Path | None
    experts_over_tensor: bool = True


def convert_weights(
    options: ConvertOptions, workers: Workers, watch: WorkProgress | None = None
) -> dict[str, Any]:
    """Convert a checkpoint, or continue a conversion that was interrupted. Nothing of another one is overwritten.

    Returns the report: what `--json` prints.

    What makes the files a checkpoint (.metadata, the tracker, the index) is written last.

    Raises:
        UsageError: If the folders lie in one another, or the output's has other files.
        WeightsError: For an input that is damaged, not the model's or has NaN or infinity, and an output of another
            input or layout.
        HostError: If the disk is too small or fails, or the interpreter has no torch.
    """
    require_apart(options.source, options.target)
    started = time.monotonic()
    arguments = {
        "input": str(options.source),
        "config": None if options.config is None else str(options.config),
        "layout": options.layout.to_json(),
        "experts_over_tensor": options.experts_over_tensor,
        "output": str(options.target),
    }
    plan = workers.run_one(Task("plan_conversion", arguments, str(options.source)))
    files: dict[str, int] = plan["files"]
    others = _other_files(options)
    beside = others.size(options.config or options.source)
    if not (options.target / NOTE).is_file():
        require_space(options.target, sum(files.values()) + beside)
    with contextlib.closing(
        OutputFolder(options.target, "convert", options.source, plan["digest"])
    ) as output:
        if output.files is not None:
            output.require_unchanged()
            return _report(options, plan, len(files), 0.0)

        def task(name: str) -> Task:
            return Task("convert_file", {**arguments, "file": name}, str(options.target / name))

        done = output.write(files, beside, task, workers, watch or WorkProgress())
        others.copy(options.config or options.source, options.target)
        workers.run_one(Task("finish_conversion", arguments, str(options.target)))
        output.finish([*files, *others.copied, *plan["last"]])
        return _report(options, plan, done, time.monotonic() - started)


def _report(options: ConvertOptions, plan: dict[str, Any], kept: int, seconds: float) -> dict[str, Any]:
    return {
        **made_by(),
        "input": plan["input"],
        "output": {"path": str(options.target), **options.layout.to_json()},
        "digest": plan["digest"],
        "files": len(plan["files"]),
        "files_kept": kept,
        "bytes": sum(plan["files"].values()),
        "tensors": plan["tensors"],
        "stored": plan["stored"],
        "mtp_left_out": plan["mtp_left_out"],
        "tied_left_out": plan["tied_left_out"],
        "rounded": plan["rounded"],
        "largest_in_memory": plan["largest"],
        "seconds": round(seconds, 3),
    }


def _other_files(options: ConvertOptions) -> OtherFiles:
    """Return the files to copy into a Hugging Face folder, such as config.json and the tokenizer."""
    model = options.config or options.source
    if options.layout.format != "hf" or not (model / CONFIG).is_file():
        return OtherFiles((), ())
    with disk_errors(model):
        return OtherFiles((*other_files(model, ()).copied, CONFIG), ())
