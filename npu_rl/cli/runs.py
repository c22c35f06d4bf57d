"""The commands on recorded runs: `npu-rl runs` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import RUN_HELP, Json, Run, Workspace
from npu_rl.cli.show import GOES_ON, amount, if_interrupted, print_json, print_report, say, say_table, tell

if TYPE_CHECKING:
    from npu_rl.training.record.recorded_run import RecordedRun
    from npu_rl.training.record.run_record import RunRecord

app = group(
    "Inspect, compare and stop recorded runs.",
    {"list": "runs:list_runs", "show": "runs:show", "compare": "runs:compare", "stop": "runs:stop"},
)


def runs_root(workspace: Path | None) -> Path | None:
    """Return the folder of run records: NPU_RL_RUNS, else the workspace's, if there is one."""
    import os

    from npu_rl.common.environment_variables import RUNS
    from npu_rl.common.user_path import user_path
    from npu_rl.workspace.folder.discovery import open_workspace_if_any

    named = os.environ.get(RUNS.name)
    if named:
        return user_path(named, RUNS.name).absolute()
    layout = open_workspace_if_any(workspace, tell)
    return None if layout is None else layout.root / "runs"


def read_run(run: str, workspace: Path | None) -> RecordedRun:
    """Return a run as currently recorded."""
    from npu_rl.training.record.locate_run import locate_run
    from npu_rl.training.record.recorded_run import recorded_run

    return recorded_run(*locate_run(run, runs_root(workspace)))


def find_record(run: str, workspace: Path | None) -> RunRecord:
    """Return the record of a run, for changes."""
    from npu_rl.training.record.locate_run import run_record

    return run_record(run, runs_root(workspace))


@examples("npu-rl runs list --rehearsals")
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
    from npu_rl.training.browse.run_rows import HEADS, RunList, row_cells, run_row, steps_text
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
            cells.append(row_cells(rows[-1], steps_text(run)))
        except NpuRlError as error:
            errors.append(error)
    if json:
        print_json(RunList(root, rows, left_out, [str(unread.where) for unread in errors]))
        return
    if cells:
        say_table(HEADS, cells)
    elif not errors:
        tell(f"No runs in {root}; `npu-rl train RECIPE` begins one.")
    for unread in errors:
        tell(f"Unreadable: {unread.where}: {unread.why}")
    if left_out:
        tell(f"{counted(left_out, 'rehearsal')} left out; --rehearsals lists them")


@examples("npu-rl runs show /data/runs/r1-zero")
def show(run: Run, workspace: Workspace = None, json: Json = False) -> None:
    """Print a run, running or not.

    It prints the curve over all attempts, the seconds of each phase, alarms, the reason of a failure, recipe, tree and
    host, and the next step. Nothing is changed.
    """
    from npu_rl.training.browse.run_page import RunPage

    found = read_run(run, workspace)
    page = RunPage(found, "" if run == found.name else str(found.folder), str(workspace or ""))
    print_report(page.to_json() if json else None, page.text, as_json=json)


@examples("npu-rl runs compare quickstart /data/runs/quickstart")
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    second: Annotated[str, typer.Argument(metavar="OTHER", help=RUN_HELP)],
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """Compare two runs.

    It prints both curves in one plot, and lists differences in recipe, tree, pins, merges, patches, environment,
    packages and host.
    """
    from npu_rl.training.browse.run_comparison import RunComparison

    found = RunComparison(read_run(first, workspace), read_run(second, workspace))
    print_report(found.to_json() if json else None, found.text, as_json=json)


@examples("npu-rl runs stop /data/runs/r1-zero")
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
        print_json(ended)
    elif ended.how == "ended before":
        say(f"{ended.run}: not running on this host ({ended.state})")
    else:
        say(f"{ended.run}: ended {ended.how}; it is {ended.state}")


@examples(
    "npu-rl report quickstart-2 --against quickstart -o report.html",
    "npu-rl report quickstart --watch   # until the run has ended",
)
def report(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="RUN", help="Show another run in the same charts."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it again every 10 seconds until the run has ended.")
    ] = False,
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """Write a run's report as HTML.

    The report is one file with curves, figures, alarms, samples, nodes and the whole provenance. Any browser opens it
    without a network. An existing file is replaced only if it is a report.
    """
    from npu_rl.common.user_path import user_path
    from npu_rl.training.record.locate_run import locate_run
    from npu_rl.training.report.write_report import ReportRequest, watch_report, write_report

    runs = runs_root(workspace)
    other = None if against is None else locate_run(against, runs)
    request = ReportRequest(locate_run(run, runs), user_path(output).absolute(), other)
    if watch:
        if_interrupted("Stopped; the report shows the run as it was when last written.")
        written = watch_report(request, lambda news: tell(f"step {news.steps}: {news.output} written"))
    else:
        written = write_report(request)
    if json:
        print_json(written)
    else:
        say(f"{written.output}: {written.run}, {written.state}, step {written.steps}, {amount(written.size)}")
