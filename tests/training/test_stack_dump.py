"""The stacks of a run's processes, from real ones that hang; and the alarm of a run that does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.masking import Secrets
from npu_rl.common.process import RUN_VARIABLE
from npu_rl.common.python_roots import INJECTED, REHEARSAL
from npu_rl.training.monitor.hang_alarm import report_of
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.hang_stacks import StackCollector
from npu_rl.training.run.train import RunFailed
from tests.training.fake_run import FakeRun
from tests.training.processes import environment, lives, new_id, pid_of, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")

# A rank with a child that has ended, and that it does not wait for.
WAITS = """
import subprocess, sys, time
def deep(place):
    child = subprocess.Popen(["true"])
    while open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[0] != "Z": time.sleep(0.01)
    open(place, "w").close()
    time.sleep(600)
deep(sys.argv[1])
"""
LOOPS = "import sys\ndef circles():\n    while True: pass\nopen(sys.argv[1], 'w').close()\ncircles()\n"


class Ranks:
    """Processes of a run, each with a rank."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, new_id()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, code: str, path: str = str(INJECTED)) -> int:
        number = len(self.started)
        file, ready = self.folder / f"rank{number}.py", self.folder / f"ready{number}"
        file.write_text(code)
        env = {**environment(self.run), "PYTHONPATH": path, "RANK": str(number), "WORLD_SIZE": "4"}
        self.started.append(subprocess.Popen([sys.executable, file, ready], env=env))
        wait_for(ready.exists, "the start")
        return self.started[-1].pid

    def dump(self) -> list[dict[str, Any]]:
        env = {**environment(None), "PYTHONPATH": str(INJECTED), "PATH": "/usr/bin:/bin"}
        words = [sys.executable, "-m", "npu_rl_stack_dump", self.run]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.wait()


def test_each_rank_is_named_with_its_line_and_goes_on(ranks: Ranks) -> None:
    waiting, looping = ranks.start(WAITS), ranks.start(LOOPS)
    stopped = ranks.start(LOOPS)
    os.kill(stopped, signal.SIGSTOP)
    without = ranks.start(LOOPS, path="")  # it would die of the signal
    rows = {row["pid"]: row for row in ranks.dump()}
    assert [rows[pid]["rank"] for pid in (waiting, looping, stopped, without)] == ["0", "1", "2", "3"]
    assert 'rank0.py", line 7 in deep' in rows[waiting]["text"]
    assert 'rank1.py", line 3 in circles' in rows[looping]["text"]
    assert rows[stopped]["state"] == "T"
    if rows[without]["how"] != "py-spy":
        assert rows[without]["text"] == "" and "py-spy" in rows[without]["how"]
    assert all(map(lives, (waiting, looping, stopped, without)))
    again = {row["pid"]: row["text"] for row in ranks.dump()}
    assert again[waiting].count("in deep") == 1, "only what is new in the file"
    lines = report_of({"nodes": [{"host": "here", "ip": "", "processes": list(rows.values())}]}).lines()
    assert any("a child of rank 0 (here, pid" in line and "has ended" in line for line in lines[:3])
    assert any(line.startswith(f"rank 2 (here, pid {stopped}): stopped") for line in lines[:3])


def test_another_runs_processes_are_not_asked(ranks: Ranks, tmp_path: Path) -> None:
    ranks.start(LOOPS)
    other = Ranks(tmp_path)
    assert other.dump() == []


@pytest.mark.second
def test_a_run_that_hangs_raises_one_alarm_with_the_stacks_of_its_processes(tmp_path: Path) -> None:
    fake = FakeRun(tmp_path)
    attempt = tmp_path / "runs" / "demo" / "attempts" / "1"

    def end_after_the_alarm() -> None:
        wait_for((attempt / "alarms.jsonl").exists, "the alarm", 60)
        os.kill(pid_of(fake.place, "driver"), signal.SIGKILL)

    ender = threading.Thread(target=end_after_the_alarm)
    ender.start()
    with pytest.raises(RunFailed, match="signal 9"):
        fake.train(["steps=5", "worker", "forever"], ["watch.phase_timeout=0.5"], steps=9)
    ender.join()
    (alarm,) = map(json.loads, (attempt / "alarms.jsonl").read_text().splitlines())
    assert (alarm["kind"], alarm["step"], alarm["count"]) == ("no-progress", 5, 1)
    assert alarm["message"].startswith("step after step 5 takes 0:0")
    assert "fake_trainer.py:" in alarm["cause"] and "watch.phase_timeout" in alarm["hint"]
    report = Path(alarm["place"])
    assert report == attempt / "stacks" / "1.txt" and " in be\n" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600


# -- phases --------------------------------------------------------------------------------------------

# As verl 0.5.0 has it: defined in one module, taken from another; and as 54c9b73 has it: beside the trainer.
NEW = {
    "verl/utils/profiler/__init__.py": "from .performance import marked_timer\n",
    "verl/utils/profiler/performance.py": (
        "from contextlib import contextmanager\n\n@contextmanager\n"
        "def marked_timer(name, timing_raw, *args, **kwargs):\n    yield\n    timing_raw[name] = 1\n"
    ),
    "verl/utils/debug/__init__.py": "from ..profiler import *\n",
    "verl/trainer/ppo/ray_trainer.py": "from verl.utils.debug import marked_timer as _taken\n",
}
OLD = {
    "verl/trainer/ppo/ray_trainer.py": (
        "from contextlib import contextmanager\n\n@contextmanager\ndef _timer(name, timing_raw):\n"
        "    yield\n    timing_raw[name] = 1\n\ndef _taken(*args, **kwargs): return _timer(*args)\n"
    ),
}
USE = """
from verl.trainer.ppo.ray_trainer import _taken
timing = {}
with _taken("step", timing):
    try:
        with _taken("gen", timing, color="red"):
            raise ValueError("lost")
    except ValueError:
        pass
print(timing)
"""


@pytest.mark.parametrize("files", [NEW, OLD])
def test_verls_timers_note_when_a_phase_begins_and_ends(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    noted = tmp_path / "phases.jsonl"
    env = {
        **environment(new_id()),
        "PYTHONPATH": f"{INJECTED}:{REHEARSAL}:{tmp_path}",
        "NPU_RL_PHASES": str(noted),
    }

    def use(**more: str) -> str:
        words = [sys.executable, "-c", USE]
        done = subprocess.run(
            words, env={**env, **more}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    assert use() == "{'step': 1}\n"
    rows = [json.loads(line) for line in noted.read_text().splitlines()]
    assert [(row["phase"], row["begins"]) for row in rows] == [
        ("step", True), ("gen", True), ("gen", False), ("step", False),
    ]  # fmt: skip
    assert noted.stat().st_mode & 0o777 == 0o600
    noted.unlink()
    use(WG_PREFIX="abc", RANK="0")
    assert not noted.exists(), "a rank times its own work"
    assert use(NPU_RL_PHASES="/nothing/there") == "{'step': 1}\n"


def test_secrets_in_a_processs_command_line_are_masked(tmp_path: Path) -> None:
    said = {
        "name": "python --api-key=sk-1 known-1",
        "text": "Process 7: python --api-key=sk-1\nFile a.py, line 3",
    }
    (tmp_path / "said.json").write_text(
        json.dumps({"nodes": [{"host": "a", "ip": "b", "processes": [said]}]})
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncp {tmp_path}/said.json "$5"\n')
    python.chmod(0o755)
    attempt = Attempt(tmp_path, 1, secrets=Secrets.of({"MY_TOKEN": "known-1"}))
    collector = StackCollector(attempt, str(python), {RUN_VARIABLE: "m"})
    wait_for(collector.done)
    collector.report()
    kept = "".join(path.read_text() for path in attempt.stacks.iterdir())
    assert "line 3" in kept and "sk-1" not in kept and "known-1" not in kept
