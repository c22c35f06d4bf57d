"""`npu-rl weights export`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted, tell_next
from npu_rl.cli.options import Config, ExpertsOverTensor, Json, Python, Workers, Workspace
from npu_rl.cli.show import print_report, tell
from npu_rl.cli.weights import interpreter
from npu_rl.common.user_path import user_path

if TYPE_CHECKING:
    from npu_rl.training.run.export_run import ExportReport


@examples(
    "npu-rl weights export quickstart quickstart-hf      # the newest checkpoint",
    "npu-rl weights export quickstart step-40 --step 40",
    "npu-rl weights export /data/runs/r1-zero r1-zero-hf --workers 8 --json",
)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or the folder of its record.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist.")],
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, metavar="N", help="The checkpoint of this step.  [default: the newest]"
        ),
    ] = None,
    config: Config = None,
    extend: ExpertsOverTensor = True,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Export a run's checkpoint to safetensors.

    FSDP's and Megatron's checkpoints become a Hugging Face folder, with
    config.json and tokenizer. Each value is compared with the checkpoint before
    OUT appears. The model names its run, step, recipe, lock and tree.
    """
    import sys

    from npu_rl.cli.recorded import find_record
    from npu_rl.cli.weights_progress import watching
    from npu_rl.training.record.saved_checkpoints.run_checkpoint import (
        explained_while_running,
        run_checkpoint,
    )
    from npu_rl.training.run.export_run import ExportOptions, export_run
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    chosen = interpreter(python, workspace)
    record = find_record(run, workspace)
    model = None if config is None else user_path(config).absolute()
    with explained_while_running(record):
        checkpoint = run_checkpoint(record, step, model)
        if record.goes_on:
            tell(f"Run {record.name} is going on. Exporting its checkpoint of step {checkpoint.step}")
        command = shlex.join(["npu-rl", *sys.argv[1:]])
        options = ExportOptions(checkpoint, user_path(out).absolute(), extend, command)
        if_interrupted(STARTS_OVER)
        with watching("exporting") as watch:
            report = export_run(options, pool_of(chosen, workers), watch)
    print_report(report.content, _text(report), as_json=json)
    if not json:
        tell_next("weights", "check", out, workspace=workspace)


def _text(report: ExportReport) -> str:
    of = report.content
    values = ", ".join(f"{count:,} in {dtype}" for dtype, count in of["values"].items())
    compared = of["audit"]["compared"]
    lines = [
        f"{of['output']}: {of['run']}, step {of['step']}, {of['shards']} shards, {of['bytes'] / 1e9:.1f} GB",
        f"  from:    {of['checkpoint']['path']} ({of['checkpoint']['format']})",
        f"  tensors: {of['tensors']:,}; values: {values}",
        f"  config:  {', '.join(of['config']) or 'unchanged'}",
        f"  audit:   {of['audit']['result']}: {compared['tensors']:,} tensors, {compared['values']:,} values",
        f"  lock:    {of['lock'] or 'not recorded'}",
    ]
    if not of["proven"]:
        lines.append(f"  unproven: {of['unproven']}")
    lines.append(f"Done in {of['seconds']:.1f} s.")
    return "\n".join(lines) + "\n"
