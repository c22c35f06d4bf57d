"""The quickstart killed in four saves, by verl's trainer through Ray: `--resume` each time, one save lost at most."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from npu_rl.training.monitor.metrics import curve, read_metrics, rewards
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import LATEST
from tests.faults.tracer import Tracer
from tests.support import ROOT, byte_code, index_env, run_cli
from tests.training.processes import left_of
from tests.training.test_quickstart_trains import wait_for_its_end

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi, pytest.mark.upstreams]

TRACER = ROOT / "tests" / "faults" / "tracer.py"
WORDS = ["steps=11", "reward.goal=null", "checkpoint.every=1", "checkpoint.keep=1"]
WORKER, TRAINER = "ray::WorkerDict", "ray::TaskRunner"
KILLS = [  # the process that dies in a save, and whether all others are killed with it
    (WORKER, False),
    (TRAINER, True),
    (WORKER, True),
    (TRAINER, False),
]
BUSY = (
    "wait until the machine is less busy, and start again"  # npu-rl's advice where Ray did not start in time
)


@pytest.mark.usefixtures("upstreams")  # it needs none, but belongs to their tier for its minutes
def test_four_kills_in_saves(quickstart_workspace: Path, tmp_path: Path) -> None:
    if not Tracer.possible():
        pytest.skip("system calls are known by their numbers on x86-64 only")
    env = {**index_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs"), **byte_code()}
    train = ["train", str(ROOT / "recipes" / "quickstart.yaml"), "--workspace", str(quickstart_workspace)]
    run, whole = tmp_path / "runs" / "cut", tmp_path / "runs" / "whole"
    chance, first = random.Random(21), 1
    not_logged = set()
    for title, everything in KILLS:
        share, cut = chance.random(), None
        while cut is None:
            child = subprocess.Popen(
                [sys.executable, "-m", "npu_rl", *train, *words(run)], env=env, cwd=tmp_path, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            cut = killed_in_a_save(child, run, first, title, share)
        saving = newest(run)
        if everything:
            child.kill()
            wait_for_its_end(run)
        _, said = child.communicate(timeout=300)
        print(json.dumps({"process": title, "all": everything, "saving": saving} | cut))
        assert cut["signal"] == signal.SIGKILL
        assert child.returncode == (-signal.SIGKILL if everything else 1), said
        assert steps(run)[0] == first, "it has gone on from the step before"
        data = run / "checkpoints" / f"global_step_{saving}" / "data.pt"
        first = saving + 1 if data.exists() and zipfile.is_zipfile(data) else saving  # or one save is lost
        if first > saving:
            assert cut["before"].endswith(LATEST), cut
            not_logged.add(saving)  # the trainer logs a step after its save
    trained(run, train, env)
    assert steps(run) == list(range(first, 12))
    trained(whole, train, env)
    expected = [(step, reward) for step, reward in rewards(curve(whole)) if step not in not_logged]
    assert rewards(curve(run)) == expected


def words(run: Path) -> list[str]:
    """Those of the next attempt."""
    if not recorded(run):
        shutil.rmtree(run, ignore_errors=True)
        return [f"name={run.name}", *WORDS]
    return [f"name={run.name}", "--resume"]


def trained(run: Path, train: list[str], env: dict[str, str]) -> None:
    """Train to the end; again if Ray did not start on a busy machine."""
    for _ in range(3):
        done = run_cli([*train, *words(run)], env, run.parents[1], timeout=900)
        if BUSY not in done.stderr:
            break
    assert done.returncode == 0, done.stderr


def killed_in_a_save(
    child: subprocess.Popen[str], run: Path, first: int, title: str, share: float
) -> dict[str, Any] | None:
    """Kill the process of this title before a change of the disk by the third save of the attempt.

    After the first the tracer comes, and counts those of the second. None if Ray did not start on a busy machine.
    """
    while recorded(run) < first:
        if child.poll() is not None:
            _, said = child.communicate()
            assert BUSY in said, said
            return None
        time.sleep(0.05)
    (pid,) = [pid for pid in map(int, filter(str.isdecimal, left_of(run))) if title_of(pid).startswith(title)]
    done = subprocess.run(
        [sys.executable, TRACER, str(pid), run / "checkpoints", str(share)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if "OSError: [Errno 1] ptrace" in done.stderr:
        child.kill()
        wait_for_its_end(run)
        pytest.skip("processes can't be traced here")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def steps(run: Path) -> list[int]:
    """Those of the newest attempt."""
    attempt = max((run / "attempts").iterdir(), key=lambda path: int(path.name))
    return [point.step for point in read_metrics(attempt / "metrics.jsonl")]


def recorded(run: Path) -> int:
    try:
        return int((run / "checkpoints" / LATEST).read_text())
    except (OSError, ValueError):  # none yet, or just opened
        return 0


def newest(run: Path) -> int:
    folders = (run / "checkpoints").glob("global_step_*")
    return max((int(path.name.rpartition("_")[2]) for path in folders), default=0)


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
