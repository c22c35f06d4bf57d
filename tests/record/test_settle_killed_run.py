"""kill -9 of npu-rl, its driver or its workers, at any moment: the next command completes the record."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import Secrets
from npu_rl.common.process import processes_of
from npu_rl.training.monitor.metrics import MetricsWriter, read_metrics
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.settle_killed_run import recover_metrics
from npu_rl.training.record.temporary_folders import (
    folder_of,
    remaining_folders,
    remove_remaining,
    run_folder,
)
from tests.training.fake_run import FakeRun, main
from tests.training.processes import FORKS, bystander, lives, new_id, pid_of, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")


class Launched:
    """An npu-rl of its own that trains, to be killed."""

    def __init__(self, root: Path, *words: str) -> None:
        self.run = FakeRun(root)
        self.process = FORKS.Process(target=main, args=(root, *words))
        self.process.start()

    def at(self, moment: str) -> None:
        wait_for((self.run.place / f"{moment}.pid").exists, moment, 30)

    @property
    def attempt(self) -> Path:
        return self.run.runs / "demo/attempts/1"

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def mark(self) -> str:
        return RunRecord.load(self.run.runs, "demo").mark

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def exit_code(self) -> int | None:
        self.process.join(60)
        return self.process.exitcode

    def end_steps(self) -> None:
        """Kill npu-rl while the trainer waits at its gate, and let that go on to its end."""
        self.at("waiting")
        self.kill()
        (self.run.place / "go").touch()
        self.at("driver")
        driver = pid_of(self.run.place, "driver")
        wait_for(lambda: not lives(driver), "the trainer's end")

    def open(self) -> RunRecord:
        return RunRecord.open(self.run.runs, "demo")

    def end_driver(self) -> None:
        """As a person would; and until it is gone."""
        for pid in processes_of(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not processes_of(self.mark), "the driver's end")

    def clear(self) -> None:
        self.kill()
        if (self.run.runs / "demo/run.json").exists():
            self.end_driver()
            remove_remaining(self.mark)


@contextlib.contextmanager
def launched(root: Path, *words: str) -> Iterator[Launched]:
    made = Launched(root, *words)
    try:
        yield made
    finally:
        made.clear()


def check_settled(launch: Launched, steps: list[int], logs: int) -> None:
    """The record is complete, and nothing else is left."""
    record = launch.open()
    (attempt,) = record.attempts
    assert attempt.outcome == "killed"
    assert [point.step for point in read_metrics(attempt.metrics)] == steps
    assert (attempt.first_step, attempt.last_step) == (min(steps, default=None), max(steps, default=None))
    assert len(list(attempt.workers.iterdir())) == logs
    assert remaining_folders(record.mark) == []
    assert not folder_of(record.mark).exists()
    assert [path for path in (launch.run.runs / ".made").glob("*") if "." in path.name] == []


@pytest.mark.second
def test_killed_before_the_first_step_while_the_trainer_goes_on_to_its_end(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=5", "gate", "logs=3", "daemon") as launch:
        launch.at("waiting")
        launch.kill()
        with pytest.raises(NpuRlError, match="Run demo is still running") as caught:
            launch.open()
        assert f"pid {processes_of(launch.mark)[0]}" in str(caught.value)
        there = RunRecord.load(launch.run.runs, "demo")
        assert there.goes_on and not there.is_locked  # as `weights export` says, too
        assert "(`npu-rl runs stop demo`)" in str(caught.value)
        with pytest.raises(NpuRlError, match="Run demo is still running"):  # a new one of its name, too
            RunRecord.create(launch.run.runs, "demo", {})
        assert folder_of(launch.mark).is_dir(), "Ray works in it"
        (launch.run.place / "go").touch()
        launch.at("driver")
        wait_for(lambda: not lives(pid_of(launch.run.place, "driver")), "the trainer's end")
        check_settled(launch, [1, 2, 3, 4, 5], 3)
        assert launch.open().curve()[-1].data["critic/score/mean"] == 0.5
        told = b"".join(
            p.read_bytes() for p in launch.attempt.rglob("*") if p.is_file() and "worker" in p.name
        )
        assert told.count(b"says") == 3


def test_killed_after_steps_and_the_trainer_with_it(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=3", "forever", "logs=1") as launch:
        launch.at("driver")
        wait_for(lambda: len(read_metrics(launch.attempt / "metrics.jsonl")) == 3, "three steps")
        launch.kill()
        launch.end_driver()
        log = launch.attempt / "driver.log"
        with log.open("a") as file:
            file.write(
                "the hub_token='S3CRET'\n"
            )  # it is masked, and tells when the driver ended all the same
        os.utime(log, (1e9, 1e9))
        with pytest.raises(NpuRlError, match="The run demo already exists"):
            RunRecord.create(launch.run.runs, "demo", {})  # a command of the same name settles it
        end = json.loads((launch.attempt / "end.json").read_text())
        assert (end["outcome"], end["first_step"], end["last_step"]) == ("killed", 1, 3)
        assert "hub_token='***'" in log.read_text() and end["ended"] == "2001-09-09T01:46:40Z"
        check_settled(launch, [1, 2, 3], 1)


@pytest.mark.second
def test_killed_while_worker_logs_are_copied(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=5", "logs=2000") as launch:
        wait_for(lambda: any((launch.attempt / "workers").glob("*")), "the first copied log", 60)
        launch.kill()
        if (launch.attempt / "end.json").exists():
            pytest.skip("the copying was quicker than the kill")
        wait_for(lambda: not processes_of(launch.mark), "the trainer's end")
        check_settled(launch, [1, 2, 3, 4, 5], 2000)


@pytest.mark.second
def test_the_driver_killed_with_workers_left(tmp_path: Path) -> None:
    """npu-rl itself ends the run then, and writes why."""
    with launched(tmp_path, "steps=2", "forever", "worker", "daemon", "logs=1") as launch:
        launch.at("driver")
        os.kill(pid_of(launch.run.place, "driver"), signal.SIGKILL)
        assert launch.exit_code() == 1
        record = launch.open()
        assert (record.attempts[0].outcome, record.attempts[0].last_step) == ("failed", 2)
        assert processes_of(record.mark) == remaining_folders(record.mark) == []
        assert len(list(record.attempts[0].workers.iterdir())) == 1


@pytest.mark.second
def test_what_is_left_without_a_driver_is_ended(tmp_path: Path) -> None:
    """As Ray's agents are, which did not notice the end of a driver within minutes."""
    with launched(tmp_path, "steps=2", "gate", "worker", "daemon") as launch:
        launch.end_steps()
        left = processes_of(launch.mark)
        assert left == sorted(pid_of(launch.run.place, name) for name in ("worker", "daemon"))
        check_settled(launch, [1, 2], 0)
        assert not any(map(lives, left))


def test_killed_while_the_model_was_made(tmp_path: Path) -> None:
    with launched(tmp_path, "slow-maker") as launch:
        launch.at("making")
        launch.kill()
        assert list((launch.run.runs / ".made").iterdir())
        check_settled(launch, [], 0)


def test_settling_twice_changes_nothing_and_being_killed_in_it_loses_nothing(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=4", "gate", "logs=2") as launch:
        launch.end_steps()
        attempt = RunRecord.load(launch.run.runs, "demo").attempts[0]
        assert recover_metrics(attempt) == 4  # as far as a settling that was killed came
        check_settled(launch, [1, 2, 3, 4], 2)
        before = {path: path.read_bytes() for path in launch.attempt.rglob("*") if path.is_file()}
        check_settled(launch, [1, 2, 3, 4], 2)
        assert before == {path: path.read_bytes() for path in launch.attempt.rglob("*") if path.is_file()}


def test_metrics_are_merged_without_doubles(tmp_path: Path) -> None:
    """A torn line, a step that was validated and trained, values that are no numbers."""
    record = RunRecord.create(tmp_path, "demo", {})
    attempt = record.begin_attempt([], {}, {}, "", secrets=Secrets())
    lines = [
        "step:2 - val/a:0.5",
        "step:2 - a:0.1 - b:nan",
        "step:3 - a:inf",
        "step:4 - a:0.25",
        "step:5 - a:0.1",
    ]
    attempt.driver_log.write_text("".join(f"{line}\n" for line in lines) + "step:6 - a:0.12345")
    with MetricsWriter(attempt.metrics) as writer:
        writer.write(2, {"val/a": 0.5})
        writer.write(2, {"a": 0.1, "b": float("nan")})
        writer.write(3, {"a": float("inf")})
    with attempt.metrics.open("ab") as file:
        file.write(b'{"step": 4, "ti')
    assert recover_metrics(attempt) == 2
    assert recover_metrics(attempt) == 0
    assert [point.step for point in read_metrics(attempt.metrics)] == [2, 2, 3, 4, 5]  # 6 may go on: 0.123456
    attempt.end("killed", None)


def test_the_steps_of_a_trainer_that_logs_iterations_are_recovered_under_both_names(tmp_path: Path) -> None:
    """MindSpeed-RL's lines, whose names the recipe's trainer.metrics gives."""
    record = RunRecord.create(tmp_path, "demo", {})
    recipe = "trainer: {log: iterations, metrics: {critic/score/mean: grpo/rewards/mean}}\n"
    attempt = record.begin_attempt([], {}, {}, recipe, secrets=Secrets())
    lines = (
        f"[10:00:00] iteration: {step} / 9 | grpo/rewards/mean : 0.{step} | timing/all : 3.1 |"
        for step in (1, 2)
    )
    attempt.driver_log.write_text("".join(f"{line}\n" for line in lines))
    with MetricsWriter(attempt.metrics) as writer:
        writer.write(1, {"critic/score/mean": 0.1, "grpo/rewards/mean": 0.1, "timing/all": 3.1})
    assert recover_metrics(attempt) == 1
    assert recover_metrics(attempt) == 0
    points = [(point.step, point.data["critic/score/mean"]) for point in read_metrics(attempt.metrics)]
    assert points == [(1, 0.1), (2, 0.2)]
    attempt.end("killed", None)


@pytest.mark.parametrize("recipe", ["", "[", "trainer: 3", "trainer: {metrics: 3}", "a: " + "[" * 5000])
def test_a_recipe_that_cannot_be_read_leaves_verls_lines(recipe: str, tmp_path: Path) -> None:
    attempt = RunRecord.create(tmp_path, "demo", {}).begin_attempt([], {}, {}, recipe, secrets=Secrets())
    attempt.driver_log.write_text("step:1 - a:0.1\n")
    assert recover_metrics(attempt) == 1
    attempt.end("killed", None)


def test_only_the_runs_own_temporary_folders_are_removed(tmp_path: Path) -> None:
    """Not a link, not one with another run's mark, not one that only has the name."""
    mine, other = new_id(), new_id()
    place = folder_of(mine)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "npu-rl-run").write_text(mine)
    places = [place, *(place.with_name(f"{place.name}{suffix}") for suffix in ("-a", "-b", "-c"))]
    try:
        places[0].symlink_to(victim)
        places[1].mkdir()
        (places[1] / "npu-rl-run").write_text(other)
        places[2].mkdir()
        (places[2] / "data").write_text("someone's")
        places[3].mkdir()
        (places[3] / "npu-rl-run").symlink_to(victim / "npu-rl-run")
        assert remaining_folders(mine) == []
        remove_remaining(mine)
        assert all(os.path.lexists(folder) for folder in places) and (victim / "npu-rl-run").exists()
        (places[2] / "data").unlink()
        assert remaining_folders(mine) == [places[2]]  # npu-rl was killed before it wrote the mark
        (places[1] / "npu-rl-run").write_text(mine)
        remove_remaining(mine)
        assert [folder for folder in places if os.path.lexists(folder)] == [places[0], places[3]]
        assert remaining_folders("../../etc") == []
    finally:
        for folder in places:
            subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_files_of_a_person_are_left_as_they_are(tmp_path: Path) -> None:
    """In the folder of an attempt, which a command that is refused may complete."""
    record = RunRecord.create(tmp_path, "demo", {})
    attempt = record.begin_attempt([], {}, {}, "")
    attempt._run_lock.close()  # as if its npu-rl had died
    notes, code = attempt.folder / "my_notes.txt", attempt.folder / "mine/x.py"
    code.parent.mkdir()
    notes.write_text("password: hunter2-and-more\n")
    code.write_text("secret_key = '0123456789'\n")
    written = [attempt.driver_log, attempt.workers / "a.err", attempt.folder / "hydra/.hydra/config.yaml"]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("api_key: S3CRET-1\n")
    with pytest.raises(NpuRlError, match="The run demo already exists"):
        RunRecord.create(tmp_path, "demo", {})
    assert (attempt.folder / "end.json").exists()
    assert notes.read_text() == "password: hunter2-and-more\n"
    assert code.read_text() == "secret_key = '0123456789'\n"
    assert [path.read_text() for path in written] == ["api_key: ***\n"] * 3


def test_a_copy_of_a_record_ends_nothing_of_the_original(tmp_path: Path) -> None:
    """Of a copy made between two attempts, and of one made in an attempt: a command on it may at most refuse."""
    original, copies = tmp_path / "a/runs", [tmp_path / "b", tmp_path / "c"]
    record = RunRecord.create(original, "demo", {})
    record.begin_attempt([], {}, {}, "").end("failed", 1)
    shutil.copytree(original, copies[0])
    attempt = record.begin_attempt([], {}, {}, "")
    shutil.copytree(original, copies[1])
    with bystander(tmp_path / "live", record.mark) as pid, run_folder(record.mark) as place:
        with pytest.raises(NpuRlError, match="The run demo already exists"):
            RunRecord.create(copies[0], "demo", {})
        with run_folder(RunRecord.open(copies[0], "demo").mark):
            pass  # its own, though the id is the same
        with pytest.raises(NpuRlError, match=f"(?s)Run demo may still be running.*pid {pid}"):
            RunRecord.open(copies[1], "demo")
        assert lives(pid) and (place / "npu-rl-run").read_text() == record.mark
        attempt._run_lock.close()  # as if its npu-rl had died
        (tmp_path / "a").rename(tmp_path / "renamed")
        RunRecord.open(tmp_path / "renamed/runs", "demo")  # the same run, whose leftovers it ends
        wait_for(lambda: not lives(pid), "the leftover's end")
        assert not place.exists()
    assert RunRecord.open(copies[1], "demo").attempts[-1].outcome == "killed"


def test_nothing_of_a_record_is_written_through_a_link(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    record = RunRecord.create(runs, "demo", {})
    record.begin_attempt([], {}, {}, "")._run_lock.close()
    (runs / "demo/attempts").rename(elsewhere)
    (runs / "demo/attempts").symlink_to(elsewhere)
    before = sorted(path.name for path in elsewhere.rglob("*"))
    with pytest.raises(NpuRlError, match="a symbolic link in place of a folder"):
        RunRecord.open(runs, "demo")
    assert sorted(path.name for path in elsewhere.rglob("*")) == before


@pytest.mark.parametrize("identity", ["", "x", "../../x", 7, None, "0" * 31])
def test_a_record_with_an_id_that_is_none_can_not_be_read(tmp_path: Path, identity: object) -> None:
    RunRecord.create(tmp_path, "demo", {})
    said = json.loads((tmp_path / "demo/run.json").read_text())
    (tmp_path / "demo/run.json").write_text(json.dumps({**said, "id": identity}))
    with pytest.raises(NpuRlError, match="can't be read"):
        RunRecord.open(tmp_path, "demo")


def test_what_lives_is_not_touched(tmp_path: Path) -> None:
    with launched(tmp_path, "steps=2", "forever", "logs=1") as launch:
        launch.at("driver")
        wait_for(lambda: len(read_metrics(launch.attempt / "metrics.jsonl")) == 2, "two steps")
        for _ in range(2):
            with pytest.raises(NpuRlError, match="is still running"):
                launch.open()
        assert lives(launch.pid) and folder_of(launch.mark).is_dir()
        os.kill(launch.pid, signal.SIGHUP)
        assert launch.exit_code() == 129
        end = json.loads((launch.attempt / "end.json").read_text())
        assert (end["outcome"], end["signal"], end["last_step"]) == ("stopped", "SIGHUP", 2)
