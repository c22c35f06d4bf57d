"""`runs stop`: real runs ended from another process, however they misbehave, and what ended runs have left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.process import processes_of
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.stop_run import StoppedRun, stop_run
from npu_rl.training.record.temporary_folders import remaining_folders
from tests.record.test_settle_killed_run import Launched, launched
from tests.training.processes import FORKS, bystander, launch, lives, pid_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")


def stop(made: Launched, grace: float = 60.0) -> tuple[StoppedRun, list[str]]:
    told: list[str] = []
    return stop_run(RunRecord.load(made.run.runs, "demo"), grace, told.append), told


def check_stopped(made: Launched, outcome: str) -> None:
    """Nothing of the run is left, and its record is complete."""
    record = RunRecord.load(made.run.runs, "demo")
    assert [attempt.outcome for attempt in record.attempts] == [outcome]
    assert processes_of(record.mark) == [] and remaining_folders(record.mark) == []
    assert not record.is_locked
    assert recorded_run(made.run.runs, "demo").state == outcome


def test_a_run_is_ended_in_order(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=3", "forever") as made:
        made.at("driver")
        assert recorded_run(made.run.runs, "demo").state == "running"
        driver = pid_of(made.run.place, "driver")
        with bystander(tmp_path / "other", None) as other:
            done, told = stop(made)
            assert lives(other)
        assert (done.how, done.outcome) == ("in order", "stopped")
        assert done.pids == (driver,) and not lives(driver) and done.killed == ()
        assert made.exit_code() == 143 and f"pid {made.pid}" in told[0]
        check_stopped(made, "stopped")
        assert recorded_run(made.run.runs, "demo").attempts[0].signal == "SIGTERM"
        assert stop(made)[0].how == "ended before"


def hang(root: Path, marks: SimpleQueue[str]) -> None:
    """Begin a run with a driver that no signal ends, and be as deaf."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record = RunRecord.create(root, "demo", {})
    record.begin_attempt(["driver"], {}, {}, "schema: 1\n").driver_log.touch()
    launch(root / "driver", record.mark, "deaf", "forever")
    marks.put(record.mark)
    time.sleep(600)


def test_an_npu_rl_that_hangs_is_killed_after_its_grace(tmp_path: Path) -> None:
    marks: SimpleQueue[str] = FORKS.SimpleQueue()
    process = FORKS.Process(target=hang, args=(tmp_path / "runs", marks))
    process.start()
    try:
        marks.get()
        record = RunRecord.load(tmp_path / "runs", "demo")
        os.kill(process.pid or 0, signal.SIGSTOP)  # as Ctrl-Z does
        done = stop_run(record, 0.3, lambda _: None)
        process.join(10)
    finally:
        process.kill()
        process.join()
    driver = pid_of(tmp_path / "runs/driver", "driver")
    assert (done.how, done.outcome) == ("forced", "killed")
    assert set(done.killed) == {driver, process.pid} and not lives(driver)
    assert not record.is_locked and processes_of(record.mark) == []


def test_a_trainer_whose_npu_rl_was_killed_is_ended_in_order(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=2", "daemon", "forever", "logs=2") as made:
        made.at("driver")
        made.kill()
        assert recorded_run(made.run.runs, "demo").state == "running"
        done, told = stop(made)
        assert (done.how, done.outcome) == ("leftover", "killed") and "SIGINT" in told[0]
        assert "interrupted in order" in (made.attempt / "driver.log").read_text()
        assert len(list((made.attempt / "workers").iterdir())) == 2
        check_stopped(made, "killed")


def test_what_an_ended_run_has_left_is_ended(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "runs", "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {}, "schema: 1\n")
    attempt.end("done", 0)
    child = launch(tmp_path / "left", record.mark, "stubborn", "forever")
    found = recorded_run(tmp_path / "runs", "demo")
    assert found.state == "done" and child.pid in found.leftover and len(found.leftover) == 2
    done = stop_run(record, 0.3, lambda _: None)
    child.wait(5)
    assert done.how == "leftover" and set(done.pids) == set(found.leftover)
    assert done.killed == (pid_of(tmp_path / "left", "stubborn"),)
    assert done.outcome == "done" and processes_of(record.mark) == []


def with_an_orphan_of_another_mount(root: Path) -> tuple[RunRecord, str]:
    """An ended run, and the mark of its processes on a node where its folder has another device number."""
    record = RunRecord.create(root / "runs", "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {"hostname": "elsewhere"}, "schema: 1\n")
    attempt.end("done", 0)
    command = json.loads((attempt.folder / "command.json").read_text())
    assert command["mark"] == record.mark and command["inode"] == record.folder.stat().st_ino
    other = f"{record.id}-{'0' * 16}"
    (attempt.folder / "command.json").write_text(json.dumps({**command, "mark": other}))
    return record, other


def test_what_a_run_has_left_on_a_node_that_mounts_its_folder_is_found_and_ended(tmp_path: Path) -> None:
    """NFS has another device number on each node, so the process has not the mark that is computed there."""
    record, mark = with_an_orphan_of_another_mount(tmp_path)
    child = launch(tmp_path / "left", mark, "forever")
    pid_of(tmp_path / "left", "driver")
    assert child.pid in recorded_run(tmp_path / "runs", "demo").leftover
    done = stop_run(record, 0.3, lambda _: None)
    child.wait(5)
    assert done.how == "leftover" and child.pid in done.pids and processes_of(mark) == []


def test_what_a_copy_of_a_record_names_is_not_the_copys(tmp_path: Path) -> None:
    record, mark = with_an_orphan_of_another_mount(tmp_path)
    shutil.copytree(record.folder, tmp_path / "runs/copy")
    child = launch(tmp_path / "left", mark, "forever")
    pid_of(tmp_path / "left", "driver")
    copy = RunRecord.load(tmp_path / "runs", "copy")
    assert stop_run(copy, 0.3, lambda _: None).how == "ended before" and child.poll() is None
    record.stop_processes(0.3)
    child.wait(5)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"mark": 3, "inode": 3}', '{"mark": "x"}', '{"mark": {}, "inode": []}']
)
def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    record, _ = with_an_orphan_of_another_mount(tmp_path)
    (record.attempts[0].folder / "command.json").write_text(text)
    assert record.marks == [record.mark]


def test_a_run_that_another_command_uses_is_not_ended(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "runs", "demo", {})
    record.begin_attempt(["driver"], {}, {"hostname": "elsewhere"}, "schema: 1\n").end("done", 0)
    with record.locked():
        with pytest.raises(NpuRlError, match="Run demo is in use") as caught:
            stop_run(RunRecord.load(tmp_path / "runs", "demo"), 1.0, lambda _: None)
        assert "Another npu-rl command" in str(caught.value)
