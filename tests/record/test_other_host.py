"""A run that was begun on another host and has no end: nothing here closes its record or goes on with it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from npu_rl.training.record.other_host import RunMayGoOnElsewhere
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.stop_run import stop_run


def begun_on(root: Path, host: str) -> RunRecord:
    record = RunRecord.create(root, "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {"hostname": host}, "schema: 1\n")
    attempt.driver_log.write_text("step:1 - critic/score/mean:0.5\n")
    attempt._run_lock.close()  # as on a disk whose locks hold on one host only
    return record


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != ".lock"}


def test_it_is_neither_opened_to_resume_nor_begun_again(tmp_path: Path) -> None:
    record = begun_on(tmp_path, "node7")
    before = content(record.folder)
    with pytest.raises(RunMayGoOnElsewhere, match="may still be active on node7") as refused:
        RunRecord.open(tmp_path, "demo")
    assert "npu-rl runs stop demo --ended-on node7" in str(refused.value)
    with pytest.raises(RunMayGoOnElsewhere):
        record.begin_attempt(["driver"], {}, {}, "schema: 1\n")
    with pytest.raises(RunMayGoOnElsewhere):
        stop_run(record, 5.0, print, ended_on="node8")
    assert content(record.folder) == before


def test_it_is_resumed_once_somebody_says_that_it_has_ended(tmp_path: Path) -> None:
    record = begun_on(tmp_path, "node7")
    assert stop_run(record, 5.0, print, ended_on="node7").outcome == "killed"
    opened = RunRecord.open(tmp_path, "demo")
    assert [point.step for point in opened.curve()] == [1]
    assert opened.begin_attempt(["driver"], {}, {}, "schema: 1\n").number == 2


def test_one_of_this_host_is_closed_as_killed(tmp_path: Path) -> None:
    begun_on(tmp_path, socket.gethostname())
    assert RunRecord.open(tmp_path, "demo").attempts[-1].outcome == "killed"
