"""The command `npu-rl plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Overrides, Recipe, Workspace, gigabytes
from npu_rl.cli.show import print_json, say_text, tell, tell_next


@examples(
    "npu-rl plan deepseek-r1-zero-256die --host-memory-gb 2000 --disk-gb 20000",
    "npu-rl plan ./my-recipe.yaml optimizer.lr=1e-6 --all",
)
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    workspace: Workspace = None,
    host_memory: Annotated[
        float | None,
        typer.Option(
            "--host-memory-gb",
            metavar="GB",
            help="Memory of a node for what is offloaded; not judged if left out.",
            callback=gigabytes,
        ),
    ] = None,
    disk: Annotated[
        float | None,
        typer.Option(
            "--disk-gb",
            metavar="GB",
            help="Free space where checkpoints are written; not judged if left out.",
            callback=gigabytes,
        ),
    ] = None,
    storage: Annotated[
        float | None,
        typer.Option(
            "--storage-gbs", metavar="GB/S", help="Speed of the storage with the weights.", callback=gigabytes
        ),
    ] = None,
    every_rule: Annotated[
        bool,
        typer.Option("--all", help="Print memory by part, disk, tokens, assumptions and every rule, too."),
    ] = False,
    json: Json = False,
) -> None:
    """Predict whether a recipe fits.

    It judges rules, layout, memory, disk, load time and tokens, and starts nothing. The exit code is 1 if the recipe
    does not fit.
    """
    from npu_rl.cli import judged
    from npu_rl.common.masking import masked_text
    from npu_rl.recipes.judgement.plan_report import plan_report, plan_text
    from npu_rl.recipes.sizing.machine import Machine
    from npu_rl.training.run.judge_in_workspace import judge_in_workspace

    machine = Machine(host=_bytes(host_memory), disk=_bytes(disk))
    loaded = judged.load(recipe, overrides or [], json)
    speed = None if storage is None else storage * 1e9
    judgement, tree = judge_in_workspace(workspace, loaded, tell, machine)
    if json:
        print_json(plan_report(judgement, speed))
    else:
        say_text(masked_text(plan_text(judgement, speed, every_rule)))
        judged.say_faults(loaded, tree)
    if not judgement.ok:
        raise SystemExit(1)
    if not json:
        tell_next("train", recipe, *(overrides or []), "--dry-run", workspace=workspace)


def _bytes(gb: float | None) -> int | None:
    return None if gb is None else int(gb * 1e9)
