"""Rehearsals in the list of runs, which may have no attempt: their verdict is rehearsal.json."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import pytest

from npu_rl.cli.signals_and_streams import interrupt
from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import Secrets
from npu_rl.rehearsal.rehearse import rehearse
from npu_rl.training.browse.rehearsal_failures import rehearsal_failures
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.attempt import write_json
from npu_rl.training.record.rehearsal_end import end_recorded
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.browse.recorded import facts, run
from tests.browse.test_runs import Runs
from tests.training.fake_run import FakeRun
from tests.training.processes import FORKS

_GOOD = {"ok": True, "seconds": 2.0, "checks": [{"name": "a", "ok": True}]}
_BAD = {
    "ok": False,
    "checks": [{"name": "a", "ok": True}, {"name": "rollout groups", "ok": False, "why": "no vllm"}],
}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def state(runs: Runs) -> Any:
    return runs.json("list", "--rehearsals")["runs"][0]["state"]


def test_a_rehearsal_that_trained_nothing_has_its_verdicts_state(runs: Runs) -> None:
    record = run(runs.root, "demo", (), rehearsal="layout")
    assert state(runs) == "killed"
    write_json(record.folder / "rehearsal.json", {"ok": True, "layout": _GOOD, "imports": None})
    assert state(runs) == "done"
    assert "nothing was started" not in runs("show", "demo").stdout
    write_json(record.folder / "rehearsal.json", {"ok": False, "layout": _BAD})
    assert state(runs) == "failed"
    shown = runs("show", "demo").stdout
    assert "layout: rollout groups: no vllm" in shown and "rehearsal.json" in shown
    page = runs.root / "page.html"
    write_report(ReportRequest((runs.root, "demo"), page))
    assert "The rehearsal trained nothing" in page.read_text()


def test_a_rehearsal_that_trained_may_have_failed_elsewhere(runs: Runs) -> None:
    record = run(runs.root, "demo", rehearsal="all")
    assert state(runs) == "done"
    write_json(
        record.folder / "rehearsal.json",
        {"ok": False, "train": {"ok": True, "failure": None}, "changed_files": ["changed a.py"]},
    )
    assert state(runs) == "failed"
    assert "changed file of the tree: changed a.py" in runs("show", "demo").stdout


# -- without a verdict ----------------------------------------------------------------------------------


def begin(root: Path, marks: SimpleQueue[str], level: str) -> None:
    """Begin a rehearsal as `rehearse` does, and work at its first level until a signal comes."""
    interrupt([])
    begun = {"rehearsal": level, "gets_verdict": True}
    record = RunRecord.create(root, "demo", facts("demo", **begun))
    with record.locked(), end_recorded(record.folder, Secrets()):
        marks.put("ready")
        time.sleep(600)


@contextmanager
def rehearsing(runs: Runs, level: str = "imports") -> Iterator[BaseProcess]:
    marks: SimpleQueue[str] = FORKS.SimpleQueue()
    process = FORKS.Process(target=begin, args=(runs.root, marks, level))
    process.start()
    try:
        marks.get()
        yield process
    finally:
        process.kill()
        process.join()


def test_a_rehearsal_that_was_killed_at_its_imports_is_told_as_killed(runs: Runs) -> None:
    with rehearsing(runs) as process:
        assert state(runs) == "running"
        process.kill()
        process.join()
    assert state(runs) == "killed"
    shown = runs("show", "demo")
    assert shown.stdout.startswith("demo: killed")
    page = runs.root / "page.html"
    write_report(ReportRequest((runs.root, "demo"), page))
    assert "The rehearsal has no verdict." in page.read_text()


def test_a_rehearsal_is_stopped_from_another_shell(runs: Runs) -> None:
    with rehearsing(runs) as process:
        stopped = runs.json("stop", "demo")
        process.join(30)
    assert (stopped["how"], stopped["state"]) == ("in order", "stopped")
    assert state(runs) == "stopped"
    assert runs.json("show", "demo")["failure"] is None


def test_a_failed_level_is_told_by_its_verdict_and_not_by_the_end_of_a_log(runs: Runs) -> None:
    record = run(runs.root, "demo", outcome="failed", rehearsal="train")
    record.attempts[0].driver_log.write_text("Traceback ...\nRuntimeError: something\n")
    part = {"ok": False, "failure": "The weight sync is wrong: a.weight: zeros"}
    write_json(record.folder / "rehearsal.json", {"ok": False, "train": part})
    failure = runs.json("show", "demo")["failure"]
    assert failure["cause"] == "train: The weight sync is wrong: a.weight: zeros"


def test_a_rehearsal_that_failed_has_its_error(runs: Runs) -> None:
    record = run(runs.root, "demo", (), rehearsal="layout", gets_verdict=True)
    with record.locked():
        assert state(runs) == "running"
    with pytest.raises(NpuRlError), end_recorded(record.folder, Secrets(("hunter2-hunter2",))):
        raise NpuRlError(
            "It did not finish", where="/opt/python", why="hunter2-hunter2", hint="--python PATH"
        )
    assert state(runs) == "failed"
    failure = runs.json("show", "demo")["failure"]
    assert failure == {"cause": "It did not finish. ***", "where": "/opt/python", "hint": "--python PATH"}
    write_json(record.folder / "rehearsal.json", {"ok": True})
    assert state(runs) == "done", "a verdict is the last word"


def rehearse_layout(folder: Path, *options: str) -> None:
    """Rehearse with a training interpreter that fails, or does not end."""
    fake = FakeRun(folder)
    rehearse(fake.prepared(options), "layout", PlainScreen(io.StringIO()), lambda _: None)


def test_a_real_rehearsal_records_how_it_ended(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    with pytest.raises(NpuRlError, match="The check of groups did not finish"):
        rehearse_layout(tmp_path, "raise")
    assert state(runs) == "failed"
    failure = runs.json("show", "demo.rehearsal")["failure"]
    assert "The check of groups did not finish" in failure["cause"]
    assert "ValueError: batch sizes differ" in failure["cause"] and "--python PATH" in failure["hint"]


def test_a_rehearsal_without_a_verdict(runs: Runs) -> None:
    """Killed between its training and the verdict; one case, whose verdict is in that of all; begun elsewhere."""
    run(runs.root, "demo", gets_verdict=True, rehearsal="all", host=os.uname().nodename)
    assert state(runs) == "killed"
    run(runs.root, "demo.case", rehearsal="rollout, case")
    rows = {row["name"]: row["state"] for row in runs.json("list", "--rehearsals")["runs"]}
    assert rows == {"demo": "killed", "demo.case": "done"}
    record = run(runs.root, "far", (), rehearsal="imports", gets_verdict=True)
    write_json(record.folder / "run.json", {**record.facts, "hostname": "elsewhere"})
    assert runs.json("show", "far")["state"] == "unknown"


def test_what_failed_is_named_by_its_level() -> None:
    verdict = {
        "imports": {"ok": False, "failures": [{"module": "m", "cause": "c", "fault": True}]},
        "rollout": {"tensor": {"ok": False, "failure": "x"}},
        "layout": {"ok": False, "checks": [{"name": "a", "ok": True}]},
        "train": None,
    }
    failed = ["imports: m: c", "layout: failed", "rollout, tensor: x"]
    assert rehearsal_failures(verdict) == failed


def test_a_run_that_is_no_rehearsal_has_no_verdict(runs: Runs) -> None:
    record = run(runs.root, "demo")
    write_json(record.folder / "rehearsal.json", {"ok": False})
    assert runs.json("list")["runs"][0]["state"] == "done"
