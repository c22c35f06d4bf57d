"""Writing of a run's report, once or repeatedly until the run has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.disk import write_named
from npu_rl.common.errors import UsageError
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.report.report_page import FIRST_LINE, report_page

PAUSE = 10.0  # seconds between two reports of a run that goes on


@dataclass(frozen=True)
class ReportRequest:
    """A report to write.

    Attributes:
        run: The folder of run records, and the run's name there.
        against: Another run, in the same way.
    """

    run: tuple[Path, str]
    output: Path
    against: tuple[Path, str] | None = None


@dataclass(frozen=True)
class WrittenReport:
    """A written report.

    Attributes:
        steps: Last logged step.
        state: State of the run when it was read.
        running: Whether it was in progress, or may have been on another host.
    """

    output: str
    run: str
    state: str
    running: bool
    steps: int
    alarms: int
    size: int


def write_report(request: ReportRequest, *, reload: int | None = None) -> WrittenReport:
    """Write the report atomically, so that readers see either the old page or the new one.

    Args:
        reload: Seconds after which the page loads itself again, if the run goes on.

    Raises:
        NpuRlError: If a run does not exist, or its record can't be read.
        UsageError: If the output is not a file, or another file than a report.
        HostError: If the disk fails.
    """
    _check_replaceable(request.output)
    run = recorded_run(*request.run)
    other = None if request.against is None else recorded_run(*request.against)
    page = report_page(run, other, reload=reload if run.may_go_on else None)
    write_named(request.output, page)
    return WrittenReport(
        str(request.output), run.name, run.state, run.may_go_on, run.steps, len(run.alarms), len(page)
    )


def watch_report(
    request: ReportRequest, tell: Callable[[WrittenReport], object], pause: float = PAUSE
) -> WrittenReport:
    """Rewrite the report until the run has ended, and return the last one.

    Args:
        tell: Called with each report that has news.
        pause: Seconds between two.

    Raises:
        NpuRlError: As `write_report`.
    """
    reload = max(round(3 * pause), 1)
    shown: tuple[int, int] | None = None
    while True:
        written = write_report(request, reload=reload)
        if not written.running:
            return written
        if shown != (written.steps, written.alarms):
            shown = (written.steps, written.alarms)
            tell(written)
        time.sleep(pause)


def _check_replaceable(output: Path) -> None:
    """Raise UsageError for a file with something else than a report."""
    if not output.is_file():  # `write_named` judges what it is
        return
    with output.open("rb") as file:
        begin = file.read(len(FIRST_LINE))
    if begin not in (b"", FIRST_LINE):
        raise UsageError(
            "The output file is not a report",
            where=str(output),
            why="npu-rl report replaces only an earlier report or an empty file.",
            hint="Name another file with -o.",
        )
