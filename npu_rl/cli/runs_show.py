"""The command `npu-rl runs show`."""

from __future__ import annotations

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Run, Workspace
from npu_rl.cli.recorded import read_run
from npu_rl.cli.show import print_report


@examples(
    "npu-rl runs show quickstart",
    "npu-rl runs show /data/runs/r1-zero",
    "npu-rl runs show quickstart --json",
)
def show(run: Run, workspace: Workspace = None, json: Json = False) -> None:
    """Print a run, running or not.

    It prints the curve over all attempts, the seconds of each phase, alarms, the reason of a failure, recipe, tree and
    host, and the next step. Nothing is changed.
    """
    from npu_rl.training.browse.run_page import RunPage

    found = read_run(run, workspace)
    page = RunPage(found, "" if run == found.name else str(found.folder), str(workspace or ""))
    document, text = (page.to_json(), "") if json else (None, page.text())
    print_report(document, text, as_json=json)
