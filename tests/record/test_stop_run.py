"""`runs stop`: real runs ended from another process, however they misbehave."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.stop_run import StoppedRun, stop_run
from tests.record.test_killed_runs import Launched, launch
from tests.training.processes import bystander, left_of, lives, pid_of

__all__ = ["launch"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the processes on Linux")


def stop(made: Launched, grace: float = 60.0) -> tuple[StoppedRun, list[str]]:
    told: list[str] = []
    return stop_run(RunRecord.load(made.run.runs, "demo"), grace, told.append), told


def test_a_run_is_ended_in_order(launch: Launched, tmp_path: Path) -> None:
    launch.start("steps=3", "forever", "daemon")
    launch.at("driver")
    with bystander(tmp_path / "other", None) as other:
        done, told = stop(launch)
        assert lives(other)
    launch.process.join(60)
    assert (done.how, done.state) == ("in order", "stopped")
    assert launch.process.exitcode == 143 and f"pid {launch.process.pid}" in told[0]
    assert left_of(launch.folder) == []
    assert recorded_run(launch.run.runs, "demo").attempts[0].signal == "SIGTERM"
    assert stop(launch)[0].how == "ended before"


def test_an_npu_rl_that_does_not_end_in_time_is_killed_and_the_run_with_it(launch: Launched) -> None:
    launch.start("deaf", "forever")
    launch.at("driver")
    driver = pid_of(launch.run.place, "driver")
    os.kill(launch.process.pid or 0, signal.SIGSTOP)  # as Ctrl-Z does
    done, _ = stop(launch, 0.3)
    assert (done.how, done.state) == ("by force", "killed")
    assert not lives(driver) and not RunRecord.load(launch.run.runs, "demo").is_locked


def test_a_run_whose_npu_rl_is_not_of_this_host_is_not_ended(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {"hostname": "node7"}, "schema: 1\n")
    command = attempt.folder / "command.json"
    command.write_text(command.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4000000'))
    seen = RunRecord.load(tmp_path, "demo")
    with pytest.raises(NpuRlError, match="Run demo is in use") as caught:
        stop_run(seen, 1.0, lambda _: None)
    assert "begun on node7" in str(caught.value)
    attempt._run_lock.close()
    with pytest.raises(NpuRlError, match="unknown, begun on node7"):
        stop_run(seen, 1.0, lambda _: None)
