"""A report that is written again while its run goes on: whole at every moment, and the last one is of the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.report.write_report import ReportRequest, WrittenReport, watch_report
from tests.report.made_run import made_attempt, made_record, metrics

AGAIN = 'http-equiv="refresh"'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_it_follows_a_run_that_may_go_on_on_another_host(root: Path) -> None:
    attempt = made_attempt(made_record(root), [1], end=None)
    attempt._run_lock.close()  # its host is `here`, and the lock of that host is not seen
    news: list[WrittenReport] = []

    def end(written: WrittenReport) -> None:
        news.append(written)
        attempt.end("done", 0)

    last = watch_report(ReportRequest((root, "demo"), root.parent / "report.html"), end, pause=0.01)
    assert [one.state for one in (*news, last)] == ["unknown", "done"]


def test_it_follows_a_run_to_its_end(root: Path) -> None:
    attempt = made_attempt(made_record(root), [1], end=None)
    request = ReportRequest((root, "demo"), root.parent / "report.html")
    news: list[WrittenReport] = []

    def go_on(written: WrittenReport) -> None:
        news.append(written)
        page = request.output.read_text()
        assert AGAIN in page and "The run has not ended" in page
        if len(news) == 2:
            attempt.close("done", 0)
            return
        with MetricsWriter(attempt.metrics) as writer:
            writer.write(2, metrics(2))

    last = watch_report(request, go_on, pause=0.01)
    assert [(one.state, one.running, one.steps) for one in news] == [
        ("running", True, step) for step in (1, 2)
    ]
    assert (last.state, last.running, last.steps) == ("done", False, 2)
    page = request.output.read_text()
    assert AGAIN not in page and "The run has not ended" not in page
    assert [path.name for path in root.parent.iterdir() if path.name.startswith(".")] == []
