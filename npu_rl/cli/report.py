"""The command `npu-rl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Run, Workspace
from npu_rl.cli.recorded import runs_root
from npu_rl.cli.show import amount, if_interrupted, print_json, say, tell


@examples(
    "npu-rl report quickstart-2 --against quickstart -o report.html",
    "npu-rl report deepseek-r1-zero-256die -o day3.html",
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
    from dataclasses import asdict

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
        print_json(asdict(written))
    else:
        say(f"{written.output}: {written.run}, {written.state}, step {written.steps}, {amount(written.size)}")
