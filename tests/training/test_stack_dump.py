"""The stacks of a run's processes, from real ones that hang; and the alarm of a run that does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.masking import Secrets
from npu_rl.common.process import RUN_VARIABLE
from npu_rl.common.python_roots import INJECTED
from npu_rl.training.monitor.hang_alarm import report_of
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.hang_stacks import StackCollector
from tests.training.processes import environment, lives, new_id, wait_for

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
    assert rows[stopped]["text"] == rows[without]["text"] == ""
    assert all(map(lives, (waiting, looping, stopped, without)))
    again = {row["pid"]: row["text"] for row in ranks.dump()}
    assert again[waiting].count("in deep") == 1, "only what is new in the file"
    lines = report_of(
        {"nodes": [{"host": "here", "processes": list(rows.values())}], "silent": [], "lost": []}
    ).lines()
    assert any("a child of rank 0 (here, pid" in line and "has ended" in line for line in lines[:3])
    assert any(line.startswith(f"rank 2 (here, pid {stopped}): stopped") for line in lines[:3])


FORKS = """
import os, sys, time
def inner(): time.sleep(600)
if os.fork() == 0:
    inner()
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def test_a_forked_process_writes_its_stacks_apart_from_its_parents(ranks: Ranks) -> None:
    parent = ranks.start(FORKS)
    rows = {row["pid"]: row["text"] for row in ranks.dump()}
    assert "in inner" not in rows.pop(parent)
    (child,) = rows.values()
    assert child.count("in inner") == 1


def test_another_runs_processes_are_not_asked(ranks: Ranks, tmp_path: Path) -> None:
    ranks.start(LOOPS)
    other = Ranks(tmp_path)
    assert other.dump() == []


def test_secrets_in_a_processs_command_line_are_masked(tmp_path: Path) -> None:
    name, text = "python --api-key=sk-1 known-1", "Process 7: python --api-key=sk-1\nFile a.py, line 3"
    said = {"pid": 7, "parent": 1, "state": "S", "name": name, "text": text}
    found = {"nodes": [{"host": "a", "processes": [said]}], "silent": [], "lost": []}
    (tmp_path / "said.json").write_text(json.dumps(found))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncp {tmp_path}/said.json "$5"\n')
    python.chmod(0o755)
    attempt = Attempt(tmp_path, 1, secrets=Secrets.of({"MY_TOKEN": "known-1"}))
    collector = StackCollector(attempt, str(python), {RUN_VARIABLE: "m"})
    wait_for(collector.done)
    collector.report()
    kept = "".join(path.read_text() for path in attempt.stacks.iterdir())
    assert "line 3" in kept and "sk-1" not in kept and "known-1" not in kept
