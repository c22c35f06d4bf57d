"""Rehearsals in the list of runs, which may have no attempt: their verdict is rehearsal.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.training.browse.rehearsal_failures import rehearsal_failures
from npu_rl.training.record.attempt import write_json
from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.browse.recorded import run
from tests.browse.test_runs import Runs

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
    assert state(runs) == "new"
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


@pytest.mark.parametrize(
    ("data", "failed"),
    [
        (
            {"ok": False, "imports": {"ok": False, "newly_failing": [{"module": "m", "cause": "c"}]}},
            ("imports: m: c",),
        ),
        ({"ok": False, "rollout": {"tensor": {"ok": False, "failure": "x\ny"}}}, ("rollout, tensor: x\\ny",)),
        ({"ok": False, "layout": {"ok": False, "checks": 3}}, ("layout: failed",)),
        ({"ok": False, "layout": [1], "rollout": 5, "changed_files": "a"}, ()),
    ],
)
def test_what_failed_is_read_from_any_content(data: dict[str, Any], failed: tuple[str, ...]) -> None:
    assert tuple(rehearsal_failures(data)) == failed


@pytest.mark.parametrize("text", ["", "[]", '{"ok": "yes"}', "{", '{"ok": 1}'])
def test_without_a_verdict_it_is_as_its_attempts_are(runs: Runs, text: str) -> None:
    record = run(runs.root, "demo", rehearsal="all")
    (record.folder / "rehearsal.json").write_text(text)
    assert state(runs) == "done"


def test_a_run_that_is_no_rehearsal_has_no_verdict(runs: Runs) -> None:
    record = run(runs.root, "demo")
    write_json(record.folder / "rehearsal.json", {"ok": False})
    assert runs.json("list")["runs"][0]["state"] == "done"
