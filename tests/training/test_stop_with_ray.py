"""The workers of a real Ray end with `runs stop`, and with a npu-rl that is killed in a step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.stop_run import stop_run
from tests.support import ROOT
from tests.training.processes import environment, left_of, lives, wait_for

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


@pytest.mark.parametrize("killed", [False, True], ids=("stopped", "kill -9 of npu-rl"))
def test_all_processes_of_a_run_end(tmp_path: Path, killed: bool) -> None:
    env = {**environment(None), "PYTHONPATH": str(ROOT)}
    npu_rl = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path)], env=env, start_new_session=True)
    run = tmp_path / "runs/demo"
    try:
        record = _started(tmp_path / "runs", npu_rl)
        pids = [int(one) for one in left_of(run) if one.isdecimal()]
        assert len(_receivers(pids)) == 2 and len(pids) >= 6
        if killed:
            npu_rl.kill()
            npu_rl.wait(60)
            wait_for(lambda: not any(map(lives, pids)), "the end of all processes", 30.0)
        done = stop_run(record, 90.0, print)
        npu_rl.wait(60)
    finally:
        npu_rl.kill()
        npu_rl.wait()
        for left in filter(str.isdecimal, left_of(run)):
            os.kill(int(left), signal.SIGKILL)
    assert done.how == ("ended before" if killed else "in order")
    assert [pid for pid in pids if lives(pid)] == []
    assert killed or left_of(run) == []
    found = recorded_run(tmp_path / "runs", "demo")
    assert found.state == done.state == ("killed" if killed else "stopped") and found.steps >= 2


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
