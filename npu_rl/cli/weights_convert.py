"""`npu-rl weights convert`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import GOES_ON, if_interrupted, tell_next
from npu_rl.cli.options import Config, ExpertsOverTensor, Json, NewFolder, Python, Workers, Workspace
from npu_rl.cli.weights import checkpoint_folder, interpreter

if TYPE_CHECKING:
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout


class Target(str, Enum):
    """A format that needs no recipe."""

    torch_dist = "torch_dist"
    hf = "hf"


@examples(
    "npu-rl weights convert V3-BF16 V3-mcore --layout deepseek-r1-zero-256die",
    "npu-rl weights convert V3-BF16 V3-legacy --layout deepseek-v3-cann-256die",
    "npu-rl weights convert V3-mcore V3-back --format hf --model-config V3-BF16",
)
def convert(
    original: Annotated[Path, typer.Argument(metavar="IN", help="The folder of a checkpoint.")],
    target: NewFolder,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="RECIPE",
            help="The recipe whose trainer will load it: its stack's format, for its parallelism.",
        ),
    ] = None,
    to: Annotated[Target | None, typer.Option("--format", help="The format, without a recipe.")] = None,
    config: Config = None,
    extend: ExpertsOverTensor = True,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Convert a checkpoint for a trainer.

    It converts between Hugging Face's format, Megatron's torch_dist and its
    legacy format, one file at a time. Interrupted, the same command continues.
    Run `npu-rl weights audit IN OUT` afterwards.
    """
    from npu_rl.cli.show import print_report
    from npu_rl.cli.weights_progress import watching
    from npu_rl.common.user_path import user_path
    from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    options = ConvertOptions(
        checkpoint_folder(original),
        user_path(target).absolute(),
        _layout(layout, to),
        None if config is None else user_path(config).absolute(),
        extend,
    )
    if_interrupted(GOES_ON)
    with watching("converting", "files", "to write") as watch:
        report = convert_weights(options, pool_of(interpreter(python, workspace), workers), watch)
    print_report(report, _text(report), as_json=json)
    if not json:
        model = () if config is None else ("--model-config", config)
        dealt = () if extend else ("--no-moe-tp-extend-ep",)
        tell_next("weights", "audit", original, target, *model, *dealt, workspace=workspace)


def _layout(recipe: str | None, to: Target | None) -> OutputLayout:
    from npu_rl.common.errors import UsageError
    from npu_rl.recipes.checkpoints.recipe_layout import recipe_layout
    from npu_rl.recipes.recipe.load_recipe import load_recipe
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

    if (recipe is None) == (to is None):
        raise UsageError(
            "Exactly one of --layout and --format is needed",
            hint="Pass --layout RECIPE for the layout of a recipe's trainer, or --format hf for Hugging Face's.",
        )
    if to is not None:
        return OutputLayout(to.value)
    assert recipe is not None
    return recipe_layout(load_recipe(recipe))


def _text(of: dict[str, Any]) -> str:
    from npu_rl.cli.weights_progress import last_line

    ranks = of["output"]["ranks"]
    divided = f", TP{ranks['tensor']} PP{len(ranks['layers']) or ranks['stages']} EP{ranks['expert']}"
    kind = of["output"]["format"]
    lines = [
        f"{of['output']['path']}: {kind}{divided if kind == 'legacy' else ''}, {of['files']} files, "
        f"{of['bytes'] / 1e9:.1f} GB",
        f"  tensors:  {of['tensors']:,} of the model" + (f", as {of['stored']:,}" if kind != "hf" else ""),
        f"  memory:   tensors of {of['largest_in_memory'] / 1e9:.2f} GB at most, in each process",
    ]
    if of["mtp_left_out"]:
        lines.append(f"  left out: {len(of['mtp_left_out'])} tensors of multi-token prediction")
    for name in of["tied_left_out"]:
        lines.append(f"  left out: {name}, which equals the embeddings that it is tied to")
    if of["rounded"]:
        lines.append(
            f"  rounded:  {len(of['rounded'])} tensors to a narrower dtype, such as {of['rounded'][0]}"
        )
    lines.append(last_line(of["seconds"], of["files_kept"], "files"))
    return "\n".join(lines) + "\n"
