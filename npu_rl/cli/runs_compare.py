"""The command `npu-rl runs compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Workspace
from npu_rl.cli.recorded import read_run
from npu_rl.cli.show import print_report

_SIDE_HELP = "A run's name, or the folder of its record."


@examples(
    "npu-rl runs compare quickstart quickstart-2",
    "npu-rl runs compare quickstart /data/runs/quickstart",
    "npu-rl runs compare quickstart quickstart-2 --json",
)
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help=_SIDE_HELP)],
    second: Annotated[str, typer.Argument(metavar="OTHER", help=_SIDE_HELP)],
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """Compare two runs.

    It prints both curves in one plot, and lists differences in recipe, tree, pins, merges, patches, environment,
    packages and host.
    """
    from npu_rl.training.browse.run_comparison import RunComparison

    found = RunComparison(read_run(first, workspace), read_run(second, workspace))
    document, text = (found.to_json(), "") if json else (None, found.text())
    print_report(document, text, as_json=json)
