"""Counts of what ran: right after a kill, in forks, and never in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from npu_rl.training.rehearsal.usage import read_usage
from tests.support import ROOT

ON_PATH = ROOT / "npu_rl" / "training" / "on_path"


def run(code: str, usage: Path | None, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ON_PATH), **extra}
    env.pop("NPU_RL_USAGE", None)
    if usage is not None:
        env["NPU_RL_USAGE"] = str(usage)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_the_runtime_has_the_same_counter() -> None:
    ours = (ON_PATH / "npu_rl_standins" / "used.py").read_bytes()
    assert ours == (ROOT / "npu_rl" / "runtime" / "used.py").read_bytes()


def test_counts_outlive_a_kill(tmp_path: Path) -> None:
    done = run(
        "import os, signal\nfrom npu_rl_standins.used import count\n"
        "for _ in range(1000): count('a')\ncount('b c')\nos.kill(os.getpid(), signal.SIGKILL)",
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert read_usage(tmp_path)[1] == {"a": 1000, "b c": 1}


def test_threads_lose_none(tmp_path: Path) -> None:
    done = run(
        "import threading\nfrom npu_rl_standins.used import count\n"
        "ts = [threading.Thread(target=lambda: [count('x') for _ in range(500)]) for _ in range(8)]\n"
        "[t.start() for t in ts]\n[t.join() for t in ts]",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert read_usage(tmp_path)[1] == {"x": 4000}


def test_a_fork_counts_in_a_file_of_its_own(tmp_path: Path) -> None:
    done = run(
        "import os\nfrom npu_rl_standins.used import count\ncount('x')\n"
        "pid = os.fork()\ncount('x')\nif pid: os.waitpid(pid, 0)",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 2
    assert read_usage(tmp_path)[1] == {"x": 3}


def test_it_is_off_without_a_folder_and_never_in_the_way(tmp_path: Path) -> None:
    code = "from npu_rl_standins.used import count\ncount('x')\nprint('on it goes')"
    for usage in (None, tmp_path / "missing"):
        done = run(code, usage)
        assert (done.returncode, done.stdout) == (0, "on it goes\n")
    assert list(tmp_path.iterdir()) == []


def test_hooks_and_standins_are_told_apart_and_torn_lines_left_out(tmp_path: Path) -> None:
    (tmp_path / "npu_rl_runtime-7.txt").write_text("           3 hf-rollout-repeats-once\n           1 half")
    (tmp_path / "npu_rl_standins-7.txt").write_text("           5 gloo.all_gather\n   \n")
    (tmp_path / "other.txt").write_text("           9 nothing of ours\n")
    hooks, standins = read_usage(tmp_path)
    assert hooks == {"hf-rollout-repeats-once": 3, "half": 1}
    assert standins == {"gloo.all_gather": 5}
