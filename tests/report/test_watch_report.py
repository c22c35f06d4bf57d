"""A report that is written again while its run goes on: whole at every moment, and the last one is of the end."""

from __future__ import annotations

import threading
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


def test_it_follows_a_run_to_its_end_and_is_whole_at_every_moment(root: Path) -> None:
    attempt = made_attempt(made_record(root), [1], end=None)
    request = ReportRequest((root, "demo"), root.parent / "report.html")
    news: list[WrittenReport] = []
    last: list[WrittenReport] = []
    torn: list[int] = []
    first, ended = threading.Event(), threading.Event()

    def tell(written: WrittenReport) -> None:
        news.append(written)
        first.set()

    def read() -> None:
        first.wait(60)
        while not ended.is_set():
            page = request.output.read_bytes()
            if not (page.startswith(b"<!doctype html>") and page.endswith(b"</html>")):
                torn.append(len(page))

    watching = threading.Thread(target=lambda: last.append(watch_report(request, tell, pause=0.01)))
    reading = threading.Thread(target=read)
    watching.start()
    reading.start()
    assert first.wait(60)
    assert AGAIN in request.output.read_text() and "The run has not ended" in request.output.read_text()
    with MetricsWriter(attempt.metrics) as writer:
        for step in (2, 3):
            writer.write(step, metrics(step))
    attempt.close("done", 0)
    watching.join(60)
    ended.set()
    reading.join(60)
    assert not torn
    assert [(one.state, one.running) for one in news] == [("running", True)] * len(news)
    assert [(one.state, one.steps, one.running) for one in last] == [("done", 3, False)]
    page = request.output.read_text()
    assert AGAIN not in page and "The run has not ended" not in page
    assert [path.name for path in root.parent.iterdir() if path.name.startswith(".")] == []
