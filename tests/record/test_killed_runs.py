"""kill -9 of npu-rl: what it started ends with it, its state is known without a process, and it can be resumed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.training.monitor.metrics import read_metrics
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_errors import RunMayGoOnElsewhere
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.temporary_folders import folder_of, run_folder
from tests.training.fake_run import FakeRun, main
from tests.training.processes import FORKS, left_of, lives, new_id, pid_of, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the processes on Linux")


class Launched:
    """A process with npu-rl's `train`, to be killed."""

    def __init__(self, root: Path) -> None:
        self.run = FakeRun(root)
        self.folder = self.run.runs / "demo"

    def start(self, *words: str) -> None:
        self.process = FORKS.Process(target=main, args=(self.run.root, *words))
        self.process.start()

    def at(self, moment: str) -> None:
        wait_for((self.run.place / f"{moment}.pid").exists, moment, 60)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launched]:
    launched = Launched(tmp_path)
    yield launched
    launched.kill()
    for left in left_of(launched.folder):
        if left.isdecimal():
            os.kill(int(left), signal.SIGKILL)


@pytest.mark.parametrize("moment", ["driver", "making", "waiting"])
def test_what_npu_rl_started_ends_with_it(launch: Launched, moment: str) -> None:
    words = {"driver": ["steps=3", "forever"], "making": ["slow-maker"], "waiting": ["gate"]}[moment]
    launch.start(*words)
    launch.at(moment)
    if moment == "driver":
        metrics = launch.folder / "attempts/1/metrics.jsonl"
        wait_for(lambda: len(read_metrics(metrics)) == 3, "three steps")
    assert recorded_run(launch.run.runs, "demo").state == "running"
    with pytest.raises(NpuRlError, match="Run demo is still running"):
        RunRecord.create(launch.run.runs, "demo", {})
    pid = pid_of(launch.run.place, moment)
    launch.kill()
    wait_for(lambda: not lives(pid), "its end")
    run = recorded_run(launch.run.runs, "demo")
    assert (run.state, run.steps) == ("killed", 3 if moment == "driver" else 0)


def test_a_driver_that_has_not_begun_python_does_not_begin_the_training(launch: Launched) -> None:
    """npu-rl is killed before the interpreter is executed: the kernel was told of no parent yet."""
    launch.start("before-exec")
    launch.at("execing")
    driver = pid_of(launch.run.place, "execing")
    launch.kill()
    assert lives(driver)
    (launch.run.place / "go").touch()
    wait_for(lambda: not lives(driver), "its end")
    assert not (launch.run.place / "driver.pid").exists()


def test_a_killed_run_is_resumed_and_its_log_masked(tmp_path: Path) -> None:
    fake = FakeRun(tmp_path)
    fake.train(["steps=3"], steps=3)
    first = tmp_path / "runs/demo/attempts/1"
    (first / "end.json").unlink()  # as if npu-rl was killed
    (first / "driver.log").write_text("the hub_token='S3CRET'\n")
    assert recorded_run(fake.runs, "demo").state == "killed"
    fake.train(["steps=5"], resume=True)
    run = recorded_run(fake.runs, "demo")
    assert [attempt.outcome for attempt in run.attempts] == [None, "done"] and run.state == "done"
    assert (first / "driver.log").read_text() == "the hub_token='***'\n"


def test_a_run_begun_on_another_host_is_unknown_and_needs_a_word(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {})
    record.begin_attempt(["driver"], {}, {"hostname": "node7"}, "")._run_lock.close()
    run = recorded_run(tmp_path, "demo")
    assert (run.state, run.begun_on) == ("unknown", "node7")
    for ended_on in (None, "node8"):
        with pytest.raises(RunMayGoOnElsewhere, match="unknown, begun on node7") as caught:
            record.require_ended(ended_on)
    assert "--resume --ended-on node7" in str(caught.value)
    record.require_ended("node7")
    record.begin_attempt(["driver"], {}, {"hostname": socket.gethostname()}, "")._run_lock.close()
    assert recorded_run(tmp_path, "demo").state == "killed"


def test_an_attempt_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord.create(tmp_path, "demo", {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(NpuRlError):
        record.begin_attempt(["driver"], {}, {}, "")
    assert record.attempts == [] and recorded_run(tmp_path, "demo").state == "new"


def test_the_next_run_removes_the_temporary_folder_of_a_killed_one_and_no_other(tmp_path: Path) -> None:
    dead, link, other, alive = (folder_of(new_id()) for _ in range(4))
    victim = tmp_path / "victim"
    places = (victim, dead, other)
    for folder in places:
        folder.mkdir()
    for folder in (victim, dead):
        (folder / "npu-rl-run").touch()
    link.symlink_to(victim)
    try:
        with run_folder(alive.name.removeprefix("nrl-")) as first, run_folder(new_id()):
            assert first == alive and first.is_dir()
        assert [path for path in (*places, link) if os.path.lexists(path)] == [victim, other, link]
        assert (victim / "npu-rl-run").exists()
    finally:
        link.unlink()
        other.rmdir()


def test_damage_is_an_error_with_its_place(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {}, "steps: 4\n")
    attempt.end("done", 0)
    files = [attempt.folder / name for name in ("command.json", "host.json", "end.json")]
    for path in (record.folder / "run.json", *files):
        before = path.read_bytes()
        for text in (before[:-5], b'["demo"]', json.dumps({"name": 1}).encode()):
            path.write_bytes(text)
            if path.name in ("host.json", "end.json") and text.startswith(b'{"name'):
                continue
            with pytest.raises(NpuRlError, match="can't be read") as caught:
                recorded_run(tmp_path, "demo")
            assert caught.value.where == str(path)
        path.write_bytes(before)
    assert recorded_run(tmp_path, "demo").state == "done"
