"""The state of a rehearsal: its verdict's, or how it ended without one, also where no attempt was begun."""

from __future__ import annotations

import io
import os
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from npu_rl.cli.signals_and_streams import interrupt
from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import Secrets
from npu_rl.rehearsal.rehearse import rehearse
from npu_rl.training.browse.run_page import RunPage
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.attempt import write_json
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.rehearsal_end import end_recorded
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.stop_run import stop_run
from tests.browse.recorded import run
from tests.training.fake_run import FakeRun
from tests.training.processes import FORKS

HERE = os.uname().nodename


def state(root: Path, name: str = "demo") -> str:
    return recorded_run(root, name).state


def failure(root: Path, name: str = "demo") -> tuple[str, str, str]:
    found = RunPage(recorded_run(root, name)).failure
    assert found is not None
    return found.cause, found.where, found.hint


def test_a_verdict_is_the_state_and_names_the_level_that_failed(tmp_path: Path) -> None:
    record = run(tmp_path, "demo", outcome="failed", rehearsal="all")
    record.attempts[0].driver_log.write_text("Traceback ...\nRuntimeError: something\n")
    verdict = record.folder / "rehearsal.json"
    write_json(verdict, {"ok": True, "imports": None})
    assert state(tmp_path) == "done"
    parts = {
        "imports": {"ok": False, "failures": [{"module": "m", "cause": "c", "fault": True}]},
        "layout": {"ok": False, "checks": [{"name": "groups", "ok": False, "why": "no vllm"}]},
        "rollout": {"tensor": {"ok": False, "failure": "x"}},
        "train": {"ok": False, "checks": [{"name": "a", "ok": True}]},
    }
    write_json(verdict, {"ok": False, **parts, "changed_files": ["changed a.py"]})
    assert state(tmp_path) == "failed"
    named = ["imports: m: c", "layout: groups: no vllm", "train: failed", "rollout, tensor: x"]
    assert failure(tmp_path) == (
        "\n".join([*named, "changed file of the tree: changed a.py"]),
        str(verdict),
        "",
    )


@pytest.mark.parametrize(
    ("facts", "attempts", "expected"),
    [
        ({"rehearsal": "layout"}, (), "killed"),
        (
            {"rehearsal": "all", "gets_verdict": True},
            ({1: 0.1},),
            "killed",
        ),  # between its training and the verdict
        ({"rehearsal": "rollout, case"}, ({1: 0.1},), "done"),  # its verdict is in that of all
        ({"rehearsal": "imports", "gets_verdict": True, "hostname": "elsewhere"}, (), "unknown"),
        ({}, ({1: 0.1},), "done"),
    ],
)
def test_a_state_without_a_verdict(
    tmp_path: Path, facts: dict[str, object], attempts: tuple[dict[int, float], ...], expected: str
) -> None:
    record = run(tmp_path, "demo", attempts, host=HERE)
    write_json(record.folder / "run.json", {**record.facts, **facts})
    if not facts:
        write_json(record.folder / "rehearsal.json", {"ok": False})  # of a run that is not a rehearsal
    assert state(tmp_path) == expected


def test_an_error_is_recorded_with_secrets_masked_until_there_is_a_verdict(tmp_path: Path) -> None:
    record = run(tmp_path, "demo", (), rehearsal="layout", gets_verdict=True)
    with record.locked():
        assert state(tmp_path) == "running"
    error = NpuRlError("It did not finish", where="/opt/python", why="hunter2-hunter2", hint="--python PATH")
    with pytest.raises(NpuRlError), end_recorded(record.folder, Secrets(("hunter2-hunter2",))):
        raise error
    assert state(tmp_path) == "failed"
    assert failure(tmp_path) == ("It did not finish. ***", "/opt/python", "--python PATH")
    write_json(record.folder / "rehearsal.json", {"ok": True})
    assert state(tmp_path) == "done"


def begin(root: Path, marks: SimpleQueue[str]) -> None:
    """Begin a rehearsal as `rehearse` does, and work at its first level until a signal comes."""
    interrupt([])
    record = RunRecord.create(root, "demo", {"rehearsal": "imports", "gets_verdict": True})
    with record.locked(), end_recorded(record.folder, Secrets()):
        marks.put("ready")
        time.sleep(600)


@pytest.mark.parametrize("killed", [False, True], ids=("runs stop", "kill -9"))
def test_a_rehearsal_that_is_ended_at_its_imports(tmp_path: Path, killed: bool) -> None:
    marks: SimpleQueue[str] = FORKS.SimpleQueue()
    process = FORKS.Process(target=begin, args=(tmp_path, marks))
    process.start()
    try:
        marks.get()
        assert state(tmp_path) == "running"
        if not killed:
            stopped = stop_run(RunRecord.load(tmp_path, "demo"), 60.0, print)
            assert (stopped.how, stopped.state) == ("in order", "stopped")
    finally:
        process.kill()
        process.join()
    assert state(tmp_path) == ("killed" if killed else "stopped")
    assert RunPage(recorded_run(tmp_path, "demo")).failure is None


def test_a_real_rehearsal_records_how_it_ended(tmp_path: Path) -> None:
    prepared = FakeRun(tmp_path).prepared(["raise"])
    with pytest.raises(NpuRlError, match="The check of groups did not finish"):
        rehearse(prepared, "layout", PlainScreen(io.StringIO()), lambda _: None)
    cause, _, hint = failure(tmp_path / "runs", "demo.rehearsal")
    assert "ValueError: batch sizes differ" in cause and "--python PATH" in hint
