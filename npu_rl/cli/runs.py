"""The group `npu-rl runs`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json, Run, Workspace
from npu_rl.cli.recorded import find_record, read_run, runs_root
from npu_rl.cli.show import GOES_ON, if_interrupted, print_json, print_report, say, say_table, tell

app = group(
    "Inspect, compare and stop recorded runs.",
    {"list": "runs:list_runs", "show": "runs:show", "compare": "runs:compare", "stop": "runs:stop"},
)
_SIDE_HELP = "A run's name, or the folder of its record."


@examples(
    "npu-rl runs list",
    "npu-rl runs list --rehearsals",
    "npu-rl runs list --json",
)
def list_runs(
    rehearsals: Annotated[bool, typer.Option("--rehearsals", help="List rehearsals, too.")] = False,
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """List the recorded runs.

    The reward is the mean of the last step that has one. A run is running, done, failed (also if it ended early or
    missed its goal), stopped (by you or an alarm), killed (npu-rl was), new (no attempt was begun), or unknown (begun
    on another host, and without an end).
    """
    from npu_rl.common.errors import NpuRlError
    from npu_rl.common.printable import counted
    from npu_rl.training.browse.run_rows import HEADS, row_cells, run_row
    from npu_rl.training.record.recorded_run import recorded_runs
    from npu_rl.workspace.folder.discovery import open_workspace

    root = runs_root(workspace) or open_workspace(workspace, tell).root / "runs"
    found, errors = recorded_runs(root)
    shown = [run for run in found if rehearsals or not run.fact("rehearsal")]
    left_out = len(found) - len(shown)
    rows, cells = [], []
    for run in shown:
        try:
            rows.append(run_row(run))
            cells.append(row_cells(run))
        except NpuRlError as error:
            errors.append(error)
    if json:
        print_json(
            {
                "folder": str(root),
                "runs": rows,
                "rehearsals_left_out": left_out,
                "unreadable": [str(unread.where) for unread in errors],
            }
        )
        return
    if cells:
        say_table(HEADS, cells)
    elif not errors:
        tell(f"No runs in {root}; `npu-rl train RECIPE` begins one.")
    for unread in errors:
        tell(f"Unreadable: {unread.where}: {unread.why}")
    if left_out:
        tell(f"{counted(left_out, 'rehearsal')} left out; --rehearsals lists them")


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


@examples(
    "npu-rl runs stop quickstart",
    "npu-rl runs stop quickstart --grace 300   # it is saving a checkpoint",
    "npu-rl runs stop /data/runs/r1-zero",
)
def stop(
    run: Run,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0.0, max=3600.0, metavar="N", help="Seconds it has to end in order."),
    ] = 90.0,
    workspace: Workspace = None,
    json: Json = False,
) -> None:  # fmt: skip
    """End a run from another shell.

    The npu-rl that started it ends it as Ctrl-C does. If it does not do so in time, it is killed, and what it started
    ends with it. A run that was begun on another host is stopped there.
    """
    from npu_rl.training.record.stop_run import stop_run

    if_interrupted(GOES_ON)

    ended = stop_run(find_record(run, workspace), grace, tell)
    if json:
        print_json(ended.to_json())
    elif ended.how == "ended before":
        say(f"{ended.run}: not running on this host ({ended.state})")
    else:
        say(f"{ended.run}: ended {ended.how}; it is {ended.state}")
