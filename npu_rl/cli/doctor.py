"""The command `npu-rl doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import tell_next
from npu_rl.cli.options import Json, ManifestOrWorkspace, Python, RecipeIfNamed


@examples(
    "npu-rl doctor                      # what this host has",
    "npu-rl doctor --recipe deepseek-r1-zero-256die --python P",
    "npu-rl doctor --root /host --json  # a host that is mounted there",
)
def doctor(
    manifest: ManifestOrWorkspace = None,
    recipe: RecipeIfNamed = None,
    python: Python = None,
    root: Annotated[
        Path,
        typer.Option(
            "--root",
            metavar="DIR",
            help="Read everything below this folder, which looks like a host; its npu-smi and set_env.sh are run.",
        ),
    ] = Path("/"),
    json: Json = False,
) -> None:
    """Check this host before a run.

    It compares driver, CANN, torch, devices, limits and network with a recipe and its manifest. Nothing is written, and
    no device is opened. The exit code is 3 if a line is red.
    """
    from npu_rl.cli.show import print_report
    from npu_rl.training.run.host_check import examine

    report = examine(manifest, recipe, python, root)
    print_report(report.to_json(), report.text(), as_json=json, fold=True)
    if report.red:
        raise SystemExit(3)
    if recipe is not None and not json:
        tell_next("train", recipe, "--dry-run")
