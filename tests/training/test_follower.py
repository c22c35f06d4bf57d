"""A run that is followed: each phase that is late is told, also one that is late while stacks are collected."""

from __future__ import annotations

import io
import json
from pathlib import Path

from npu_rl.training.monitor.hang_alarm import StackReport
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.monitor.phase_clock import PhaseClock
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.watch import Watch
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.follower import Follower
from npu_rl.training.run.hang_stacks import StackCollector
from tests.report.made_run import made_attempt, made_record


class HeldCollector(StackCollector):
    """A collection without a process, that has ended when the test says so."""

    def __init__(self) -> None:
        self.file, self.ended = Path("stacks.txt"), False

    def done(self) -> bool:
        return self.ended

    def end(self) -> None:
        self.ended = True

    def report(self) -> StackReport:
        return StackReport(error="nobody answered")


def begin(attempt: Attempt, phase: str, *, before: str = "") -> None:
    ended = [{"phase": before, "begins": False, "time": 1.0}] if before else []
    with attempt.phases.open("a") as file:
        for event in (*ended, {"phase": phase, "begins": True, "time": 1.0}):
            file.write(json.dumps(event) + "\n")


def test_a_phase_that_is_late_while_stacks_are_collected_is_told_after_them(tmp_path: Path) -> None:
    attempt = made_attempt(made_record(tmp_path), (), end=None)
    collections: list[HeldCollector] = []

    def collect() -> StackCollector:
        collections.append(HeldCollector())
        return collections[-1]

    late_at_once = PhaseClock(floor=-1.0, first_limits={"gen": -1.0, "update_actor": -1.0})
    with MetricsWriter(attempt.metrics) as writer:
        screen = PlainScreen(io.StringIO())
        follower = Follower(attempt, writer, Watch(), late_at_once, screen, 8, StepLines(), None, collect)

        def look() -> list[str]:
            follower.read_new_lines()
            follower.look_at_clock()
            return [alarm.message.split()[0] for alarm in follower.alarms]

        begin(attempt, "gen")
        assert (look(), len(collections)) == ([], 1)
        begin(attempt, "update_actor", before="gen")
        assert (look(), len(collections)) == ([], 1)  # one collection at a time
        collections[0].ended = True
        assert look() == ["gen"]
        assert (look(), len(collections)) == (["gen"], 2)
        collections[1].ended = True
        assert (look(), look()) == (["gen", "update_actor"], ["gen", "update_actor"])
        assert len(collections) == 2
    attempt.close("stopped", None, 130)
