"""The commands `npu-rl weights`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.next_steps import GOES_ON, if_interrupted, tell_next
from npu_rl.cli.options import Json, NewFolder, Python, Workers, Workspace
from npu_rl.cli.show import print_report, tell

app = group(
    "Prepare model weights for a trainer.",
    {
        "get": "get:weights",
        "cast": "weights:cast",
        "check": "weights_check:check",
        "convert": "weights_convert:convert",
        "audit": "weights_audit:audit",
        "export": "weights_export:export",
    },
    "npu-rl weights cast DeepSeek-V3-Base V3-BF16",
    "npu-rl weights check V3-BF16 --recipe deepseek-r1-zero-256die",
    "npu-rl weights convert V3-BF16 V3-mcore --layout deepseek-r1-zero-256die",
)


class Device(str, Enum):
    """The computing device."""

    cpu = "cpu"
    cuda = "cuda"
    npu = "npu"


@examples(
    "npu-rl weights cast DeepSeek-V3-Base V3-BF16   # again: it continues",
    "npu-rl weights cast DeepSeek-V3-Base V3-BF16 --workers 4",
    "npu-rl weights cast DeepSeek-V3-Base V3-BF16 --device npu --json",
)
def cast(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The folder of the checkpoint in FP8.")],
    target: NewFolder,
    workers: Workers = None,
    device: Annotated[
        Device, typer.Option("--device", help="The computing device; the bytes are the same.")
    ] = Device.cpu,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Cast FP8 weights to BF16.

    It casts DeepSeek's FP8 shard by shard, and rewrites index and config.json.
    Tensors of multi-token prediction are left out. Interrupted, the same
    command continues.
    """
    from npu_rl.cli.weights_progress import watching
    from npu_rl.common.user_path import user_path
    from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
    from npu_rl.weights.checkpoints.worker_pool import pool_of
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

    pool = pool_of(interpreter(python, workspace), workers, inherit_path=device is Device.npu)
    options = ConvertOptions(
        checkpoint_folder(source),
        user_path(target).absolute(),
        OutputLayout("hf"),
        command="cast",
        device=device.value,
    )
    if_interrupted(GOES_ON)
    with watching() as watch:
        report = convert_weights(options, pool, watch)
    print_report(report, _cast_text(report), as_json=json)
    if not json:
        tell_next("weights", "check", target, workspace=workspace)


def checkpoint_folder(path: Path) -> Path:
    """Return the absolute path of a checkpoint's folder. Raises UsageError if it does not exist."""
    from npu_rl.common.user_path import existing_folder

    return existing_folder(
        path, "Pass the folder of a checkpoint; `npu-rl weights get NAME` prints how to download one."
    )


def interpreter(python: str | None, workspace: Path | None) -> str:
    """Return the given interpreter, else the one chosen for the workspace, else the one that runs npu-rl."""
    from npu_rl.workspace.folder.chosen_interpreter import choose
    from npu_rl.workspace.folder.discovery import open_workspace_if_any

    if sys.platform != "linux":
        tell("The memory that a pickled file takes to open is limited on Linux only")
    return choose(python, None if python is not None else open_workspace_if_any(workspace, tell))


def _cast_text(of: dict[str, Any]) -> str:
    from npu_rl.cli.weights_progress import last_line
    from npu_rl.common.printable import one_line

    same = ", ".join(f"{count} in {dtype}" for dtype, count in of["copied_tensors"].items()) or "none"
    left = [one_line(name) for name in of["not_copied"]]
    lines = [
        f"{of['output']['path']}: {of['files']} shards in BF16, {of['bytes'] / 1e9:.1f} GB",
        f"  tensors:  {of['cast']} cast from FP8; copied as they are: {same}",
        f"  left out: {of['scales_left_out']} scales, "
        f"{len(of['mtp_left_out'])} tensors of multi-token prediction",
        f"  config:   {', '.join(of['config']) or 'unchanged'}",
        f"  files:    {len(of['copied'])} copied" + (f"; not copied: {', '.join(left)}" if left else ""),
        last_line(of["seconds"], of["files_kept"], "shards"),
    ]
    return "\n".join(lines) + "\n"
