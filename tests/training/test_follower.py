"""A run that is followed: each late step raises an alarm; a log that stops while the trainer goes on raises another."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.training.monitor.hang_alarm import StackReport
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_clock import StepClock, Wait
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.watch import Watch
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.follower import Follower
from npu_rl.training.run.hang_stacks import StackCollector
from tests.report.made_run import made_attempt, made_record


class LateClock(StepClock):
    """A clock whose steps are late at once."""

    def wait(self, now: float) -> Wait:
        return replace(super().wait(now), limit=-1.0)


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


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    made = made_attempt(made_record(tmp_path), (), end=None)
    yield made
    made.close("stopped", None, 130)


@pytest.fixture
def collections() -> list[HeldCollector]:
    return []


@pytest.fixture
def follower(attempt: Attempt, collections: list[HeldCollector]) -> Iterator[Follower]:
    """A follower whose steps are always late."""

    def collect() -> StackCollector:
        collections.append(HeldCollector())
        return collections[-1]

    with MetricsWriter(attempt.metrics) as writer:
        screen, clock = PlainScreen(io.StringIO()), LateClock()
        yield Follower(attempt, writer, Watch(), clock, screen, 800, StepLines(), None, collect)


def look(follower: Follower) -> list[str]:
    follower.read_new_lines()
    follower.look_at_clock()
    return [f"{alarm.kind} {alarm.message.split(' takes')[0]}" for alarm in follower.alarms]


def log(attempt: Attempt, step: int) -> None:
    with attempt.driver_log.open("a") as file:
        file.write(f"step:{step} - critic/score/mean:0.5\n")


def test_a_step_that_is_late_while_stacks_are_collected_raises_its_alarm_after_them(
    attempt: Attempt, follower: Follower, collections: list[HeldCollector]
) -> None:
    log(attempt, 1)
    assert (look(follower), len(collections)) == ([], 1)
    log(attempt, 2)
    assert (look(follower), len(collections)) == ([], 1)  # one collection at a time
    collections[0].ended = True
    assert look(follower) == ["no-progress step 2"]
    assert (look(follower), len(collections)) == (["no-progress step 2"], 2)
    collections[1].ended = True
    assert look(follower) == look(follower) == ["no-progress step 2", "no-progress step 3"]
    assert len(collections) == 2


def test_a_log_that_stops_while_the_trainer_goes_on_is_an_alarm_of_its_own(
    attempt: Attempt, follower: Follower, collections: list[HeldCollector]
) -> None:
    """The samples of a step are written before its line; those of earlier attempts don't count."""
    run = attempt.folder.parents[1]
    (run / "samples").mkdir(exist_ok=True)
    (run / "samples" / "90.jsonl").touch()
    os.utime(run / "samples" / "90.jsonl", (1.0, 1.0))
    log(attempt, 7)
    (run / "samples" / "8.jsonl").touch()
    assert (look(follower), len(collections)) == ([], 1)
    collections[0].ended = True
    assert look(follower) == ["no-progress step 8"]
    log(attempt, 8)
    (run / "samples" / "9.jsonl").touch()
    (run / "checkpoints" / "global_step_10").mkdir(parents=True)
    stopped = "stopped-log The log has no step after 8, but step 10 was written"
    assert look(follower)[1:] == [stopped]
    (run / "samples" / "12.jsonl").touch()
    assert look(follower)[1:] == [stopped, stopped.replace("step 10", "step 12")]
    assert (look(follower)[3:], len(collections)) == ([], 2)  # now nothing more is written: the trainer hangs
