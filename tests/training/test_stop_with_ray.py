"""`runs stop` with the workers of a real Ray: all of them end, also those of a run whose driver was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.process import processes_of, stop_remaining
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.stop_run import StoppedRun, stop_run
from npu_rl.training.record.temporary_folders import remaining_folders
from tests.support import ROOT
from tests.training.processes import environment, lives, wait_for

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc"),
]
LAUNCH = (
    "import pathlib, sys; from tests.training.hang_run import hang; hang(pathlib.Path(sys.argv[1]), 'none', "
)
LAUNCH += "steps=100_000, work=0.2, floor=3600)"


def _receivers(pids: list[int]) -> list[int]:
    """Return the processes that receive the weights: children of Ray's workers, not Ray's own."""
    return [pid for pid in pids if b"for line in sys.stdin" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("killed", [False, True], ids=("npu-rl lives", "npu-rl and the driver were killed"))
def test_all_processes_of_a_run_end(tmp_path: Path, killed: bool) -> None:
    env = {**environment(None), "PYTHONPATH": str(ROOT)}
    npu_rl = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path)], env=env, start_new_session=True)
    try:
        record = _started(tmp_path / "runs", npu_rl)
        pids = processes_of(record.mark)
        receivers = _receivers(pids)
        assert len(receivers) == 2 and len(pids) >= 6
        if killed:
            os.kill(npu_rl.pid, signal.SIGKILL)
            os.kill(record.attempts[-1].driver or 0, signal.SIGKILL)
            npu_rl.wait(60)
            assert any(map(lives, pids)), "nothing was left to be stopped"
        done = _stopped(record)
        npu_rl.wait(60)
    finally:
        npu_rl.kill()
        npu_rl.wait()
        for run in (tmp_path / "runs").glob("*/run.json"):  # what a stop that fails has left
            stop_remaining(RunRecord.load(tmp_path / "runs", run.parent.name).mark)
    assert done.how == ("leftover" if killed else "in order")
    assert [pid for pid in pids if lives(pid)] == [] == processes_of(record.mark)
    assert remaining_folders(record.mark) == []
    found = recorded_run(tmp_path / "runs", "demo")
    assert found.state == done.outcome == ("killed" if killed else "stopped") and found.steps >= 2


def _started(runs: Path, npu_rl: subprocess.Popen[bytes]) -> RunRecord:
    """Return the record once two steps are done."""
    metrics = runs / "demo/attempts/1/metrics.jsonl"
    wait_for(
        lambda: npu_rl.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2),
        "the second step",
        600.0,
    )
    log = runs / "demo/attempts/1/driver.log"
    assert npu_rl.poll() is None, log.read_text()[-2000:] if log.exists() else "npu-rl has not begun the run"
    return RunRecord.load(runs, "demo")


def _stopped(record: RunRecord) -> StoppedRun:
    return stop_run(RunRecord.load(record.folder.parent, "demo"), 90.0, print)
