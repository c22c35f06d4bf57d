"""A run's record: one owner at a time, whole files, no secrets, and the truth after a kill."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError, UsageError
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.run_record import RunRecord
from tests.training.processes import FORKS

COMMAND = ["python", "-m", "verl.trainer.main_ppo", "trainer.total_training_steps=5"]


def create_when_all_are_there(root: Path, all_there: Barrier, said: SimpleQueue[str]) -> None:
    all_there.wait(30)
    try:
        said.put(RunRecord.create(root, "demo", {}).id)
    except NpuRlError as error:
        said.put(error.what)


def open_and_begin(root: Path, said: SimpleQueue[str]) -> None:
    """Report the outcome that the record shows, and how it and a new attempt are refused."""
    seen = RunRecord.load(root, "demo")
    said.put(str(seen.attempts[-1].outcome))
    for action in (seen.require_ended, lambda: begin(seen)):
        try:
            action()
            said.put("not refused")
        except NpuRlError as error:
            said.put(str(error))


def run_to_its_end(action: Callable[..., None], *arguments: object) -> None:
    process = FORKS.Process(target=action, args=arguments)
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0


def begin(record: RunRecord, recipe: str = "schema: 1\n") -> Attempt:
    return record.begin_attempt(COMMAND, {"NPU_RL_RUN": record.id}, {"npus": 0}, recipe)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


# -- create --------------------------------------------------------------------------------------------


def test_a_new_run_has_its_folders_facts_and_lock(root: Path) -> None:
    record = RunRecord.create(root, "first", {"manifest": "quickstart"}, lock=b'{"lock_format": 1}')
    assert (record.folder, record.name) == (root / "first", "first")
    for place in (record.tensorboard, record.samples, record.checkpoints):
        assert place.is_dir()
    assert (record.folder / "lock.json").read_bytes() == b'{"lock_format": 1}'
    written = json.loads((record.folder / "run.json").read_text())
    assert (written["manifest"], written["name"], written["id"]) == ("quickstart", "first", record.id)
    assert os.listdir(root) == ["first"]


def test_a_run_that_is_there_is_refused_with_the_ways_out(root: Path) -> None:
    RunRecord.create(root, "first", {"mine": True})
    with pytest.raises(NpuRlError, match="The run first already exists") as caught:
        RunRecord.create(root, "first", {})
    assert "--resume" not in str(caught.value), "it has no checkpoint"
    assert "name=" in str(caught.value)
    (root / "first/checkpoints/latest_checkpointed_iteration.txt").write_text("4")
    with pytest.raises(NpuRlError) as caught:
        RunRecord.create(root, "first", {})
    assert "--resume" not in str(caught.value), "the checkpoint's folder is not there"
    (root / "first/checkpoints/global_step_4").mkdir()
    with pytest.raises(NpuRlError, match="continue from its checkpoint of step 4 with --resume"):
        RunRecord.create(root, "first", {})
    assert json.loads((root / "first/run.json").read_text())["mine"] is True
    assert os.listdir(root) == ["first"]


def test_something_else_in_its_place_is_left_alone(root: Path) -> None:
    (root / "first").mkdir(parents=True)
    (root / "first/notes.txt").write_text("mine")
    (root / "second").write_text("a file")
    for name in ("first", "second"):
        with pytest.raises(NpuRlError, match="taken by something that is not a run"):
            RunRecord.create(root, name, {})
    assert (root / "first/notes.txt").read_text() == "mine"
    assert (root / "second").read_text() == "a file"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".hidden", "a b", "a\n", "é", "x" * 101])
def test_a_name_that_is_no_folder_is_a_usage_error(root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="Invalid run name"):
        RunRecord.create(root, name, {})
    assert not root.exists()


def test_of_many_at_once_one_gets_the_name(root: Path) -> None:
    said, all_there = FORKS.SimpleQueue(), FORKS.Barrier(6)
    racers = [FORKS.Process(target=create_when_all_are_there, args=(root, all_there, said)) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(30)
    assert [racer.exitcode for racer in racers] == [0] * 6
    winners = [word for word in (said.get() for _ in racers) if word != "The run demo already exists"]
    assert winners == [RunRecord.load(root, "demo").id]
    assert os.listdir(root) == ["demo"]


# -- attempts ------------------------------------------------------------------------------------------


def test_an_attempt_has_its_files_and_an_end(root: Path) -> None:
    record = RunRecord.create(root, "demo", {})
    attempt = begin(record, "schema: 1\nname: demo\n")
    assert (attempt.number, attempt.folder) == (1, root / "demo/attempts/1")
    assert json.loads((attempt.folder / "command.json").read_text())["command"] == COMMAND
    assert json.loads((attempt.folder / "environment.json").read_text())["NPU_RL_RUN"] == record.id
    assert json.loads((attempt.folder / "host.json").read_text()) == {
        "hostname": socket.gethostname(),
        "npus": 0,
    }
    assert (root / "demo/recipe.yaml").read_text() == "schema: 1\nname: demo\n"
    assert attempt.workers.is_dir()
    assert attempt.usage.is_dir()
    with MetricsWriter(attempt.metrics) as metrics:
        metrics.write(4, {"a": 1.0})
        metrics.write(9, {"a": 1.0})
    attempt.add_alarm({"kind": "nan", "message": "größer"})
    attempt.end("done", 0)
    attempt.end("failed", 1)  # a second end changes nothing
    (seen,) = RunRecord.load(root, "demo").attempts
    assert (seen.outcome, seen.code) == ("done", 0)
    assert json.loads(attempt.alarms.read_text())["message"] == "größer"


def test_the_next_attempt_has_the_next_number_and_its_own_recipe(root: Path) -> None:
    first = begin(RunRecord.create(root, "demo", {}), "one")
    first.end("stopped", 130)
    second = begin(RunRecord.load(root, "demo"), "two")
    second.end("done", 0)
    assert [first.number, second.number] == [1, 2]
    assert (first.folder / "recipe.yaml").read_text() == "one"
    assert (second.folder / "recipe.yaml").read_text() == (root / "demo/recipe.yaml").read_text() == "two"
    outcomes = [(a.number, a.outcome) for a in RunRecord.load(root, "demo").attempts]
    assert outcomes == [(1, "stopped"), (2, "done")]


# -- who has the run -----------------------------------------------------------------------------------


def test_while_an_attempt_lasts_no_other_process_gets_the_run(root: Path) -> None:
    record = RunRecord.create(root, "demo", {})
    attempt = begin(record)
    said = FORKS.SimpleQueue()
    run_to_its_end(open_and_begin, root, said)
    assert said.get() == "None"
    for refusal in (said.get(), said.get()):
        assert refusal.startswith("Run demo is still running") and f"pid {os.getpid()}" in refusal
    attempt.end("done", 0)
    assert RunRecord.load(root, "demo").attempts[-1].outcome == "done"
    assert [p.name for p in (root / "demo/attempts").iterdir()] == ["1"]
