"""The command `npu-rl report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Run, Workspace
from npu_rl.cli.recorded import runs_root
from npu_rl.cli.show import amount, if_interrupted, print_json, say, tell

if TYPE_CHECKING:
    from npu_rl.training.report.write_report import ReportRequest, WrittenReport


@examples(
    "npu-rl report quickstart-2 --against quickstart -o report.html",
    "npu-rl report deepseek-r1-zero-256die --against published",
    "npu-rl report quickstart --watch   # until the run has ended",
)
def report(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN|published",
            help="Show another run, or the published figures of the recipe, in the same charts.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it again every 10 seconds until the run has ended.")
    ] = False,
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """Write a run's report as HTML.

    The report is one file with curves, alarms, samples, nodes and the whole
    provenance. Any browser opens it without a network.
    """
    from npu_rl.training.report.write_report import watch_report, write_report

    request = _request(run, output, against, workspace)
    if watch:
        if_interrupted("Stopped; the report shows the run as it was when last written.")
        written = watch_report(request, lambda news: tell(f"step {news.steps}: {news.output} written"))
    else:
        written = write_report(request)
    if json:
        print_json(written.to_json())
    else:
        _print(written)


def _request(run: str, output: Path, against: str | None, workspace: Path | None) -> ReportRequest:
    from npu_rl.common.user_path import user_path
    from npu_rl.training.record.locate_run import locate_run
    from npu_rl.training.report.write_report import PUBLISHED, ReportRequest

    runs = runs_root(workspace)
    published = against == PUBLISHED
    other = None if against is None or published else locate_run(against, runs)
    return ReportRequest(locate_run(run, runs), user_path(output).absolute(), other, published)


def _print(written: WrittenReport) -> None:
    say(f"{written.output}: {written.run}, {written.state}, step {written.steps}, {amount(written.size)}")
    for line in written.missing:
        say(f"  {line}")
