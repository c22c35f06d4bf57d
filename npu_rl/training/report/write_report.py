"""Writing of a run's report, once or repeatedly until the run has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.disk import write_named
from npu_rl.common.errors import UsageError
from npu_rl.training.record.recorded_run import RecordedRun, recorded_run
from npu_rl.training.report.gather_report import gather_run
from npu_rl.training.report.published_rows import PublishedRow, all_rows, published_rows
from npu_rl.training.report.report_page import report_page

PUBLISHED = "published"
PAUSE = 10.0  # seconds between two reports of a run that goes on


@dataclass(frozen=True)
class ReportRequest:
    """A report to write.

    Attributes:
        run: The folder of run records, and the run's name there.
        against: Another run, in the same way.
        published: Whether to compare with the published figures of the run's recipe.
    """

    run: tuple[Path, str]
    output: Path
    against: tuple[Path, str] | None = None
    published: bool = False


@dataclass(frozen=True)
class WrittenReport:
    """A written report.

    Attributes:
        steps: Last logged step.
        state: State of the run when it was read.
        running: Whether it was in progress, or may have been on another host.
        missing: What the report lacks.
    """

    output: Path
    run: str
    state: str
    running: bool
    steps: int
    alarms: int
    size: int
    missing: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as documented in docs/json.md."""
        return {**asdict(self), "output": str(self.output), "missing": list(self.missing)}


def write_report(request: ReportRequest, *, reload: int | None = None) -> WrittenReport:
    """Write the report atomically, so that readers see either the old page or the new one.

    Args:
        reload: Seconds after which the page loads itself again, if the run goes on.

    Raises:
        NpuRlError: If a run does not exist, or its metrics are larger than any run's.
        UsageError: If nothing is published for the run's recipe, or the output is not a file.
        HostError: If the disk fails.
    """
    recorded = recorded_run(*request.run)
    row = _published(recorded) if request.published else None
    other = request.against
    compared = None if other is None else gather_run(recorded_run(*other))
    run = gather_run(recorded)
    page = report_page(
        run,
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(recorded.read_at)),
        other=compared,
        published=row,
        reload=reload if recorded.may_go_on else None,
    )
    write_named(request.output, page)
    alarms = len(run.alarms) + run.alarms_left_out
    return WrittenReport(
        request.output,
        run.name,
        run.state,
        recorded.may_go_on,
        recorded.steps,
        alarms,
        len(page),
        run.missing,
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


def _published(run: RecordedRun) -> PublishedRow:
    """Return the first published row of a recipe. Raises UsageError without one."""
    rows = published_rows(run.recipe.name, run.recipe.extended)
    if not rows:
        known = sorted({name for row in all_rows() for name in row.recipes})
        raise UsageError(
            f"No figures are published for the recipe {run.recipe.name}",
            why=f"Figures are known of: {', '.join(known)}.",
            hint="Leave --against out, or name another run.",
        )
    return rows[0]
