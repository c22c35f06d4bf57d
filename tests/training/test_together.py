"""From a real driver's words to the record's curve, the way `train` puts these pieces together."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from npu_rl.training.explain import explain
from npu_rl.training.metrics import MetricsWriter, parse_line
from npu_rl.training.process import Child, follow, start, stop
from npu_rl.training.record import RunRecord
from npu_rl.training.screen import PlainScreen, final_curve
from npu_rl.training.watch import Limits, Watch
from tests.training.processes import TRAINER, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")


def run(record: RunRecord, *options: str) -> tuple[str, Child]:
    """One attempt with the fake trainer, to its end; what the screen got."""
    argv = [sys.executable, str(TRAINER), str(record.folder), *options]
    env = environment(record.id)
    attempt = record.begin_attempt(argv, env, {}, "schema: 1\n")
    child = start(argv, env=env, cwd=attempt.folder, output=attempt.driver_log)
    tail, shown, watch = follow(attempt.driver_log), io.StringIO(), Watch(Limits(), started=time.monotonic())
    screen = PlainScreen(shown)
    ended = False
    with MetricsWriter(attempt.metrics) as metrics:
        while not ended:
            ended = child.wait(0.05) is not None  # what it said before that is read once more
            for line in tail.lines():
                if found := parse_line(line):
                    metrics.write(*found)
                    screen.step(found[0], 5, found[1], None)
                    for alarm in watch.point(*found, time.monotonic()):
                        attempt.add_alarm(alarm.to_json())
    killed = stop(child, record.id)
    outcome = "killed" if killed else "done" if child.poll() == 0 else "failed"
    attempt.end(outcome, child.poll())
    return shown.getvalue(), child


def test_a_run_that_ends_well(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {})
    shown, child = run(record, "steps=5")
    assert child.poll() == 0
    assert shown.split("\n")[4] == "step 5/5 reward 0.500 0.05 s"
    (attempt,) = RunRecord.open(tmp_path, "demo").attempts
    assert (attempt.outcome, attempt.first_step, attempt.last_step) == ("done", 1, 5)
    assert [point.data["critic/score/mean"] for point in record.curve()] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert "0.5" in final_curve(record.curve(), 40, 5, encoding="ascii")
    assert not attempt.alarms.exists()


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {})
    run(record, "steps=2", "raise")
    (attempt,) = RunRecord.open(tmp_path, "demo").attempts
    assert (attempt.outcome, attempt.code, attempt.last_step) == ("failed", 1, 2)
    told = explain([attempt.driver_log, *sorted(attempt.workers.iterdir())], attempt.code)
    assert told is not None
    assert told.cause.startswith("ValueError: batch sizes differ")
    assert told.file == attempt.driver_log
