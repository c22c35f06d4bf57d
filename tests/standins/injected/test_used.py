"""Counts of what ran: right after a kill, in forks, and never in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from npu_rl.common.python_roots import REHEARSAL
from npu_rl.rehearsal.patch_hooks import read_usage


def run(code: str, usage: Path | None, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REHEARSAL), **extra}
    env.pop("NPU_RL_USAGE", None)
    if usage is not None:
        env["NPU_RL_USAGE"] = str(usage)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_what_runs_once_in_a_while_is_exact_after_a_kill(tmp_path: Path) -> None:
    """A hook of each step, over a rehearsal's steps, beside one of each micro batch."""
    done = run(
        "import os, signal\nfrom npu_rl_standins.used import count\n"
        "for _ in range(60):\n  [count('of a micro batch') for _ in range(50)]\n  count('of a step')\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert read_usage(tmp_path)[1]["of a step"] == 60


def test_equal_process_numbers_of_two_nodes_do_not_meet(tmp_path: Path) -> None:
    """Sixteen nodes share the folder. Nodes of one name, too: containers are often called alike."""
    code = (
        "import os\nnode, pid = os.uname(), os.getpid()\nos.getpid = lambda: 7\n"
        "os.uname = lambda: type(node)((node.sysname, {!r}, *node[2:]))\n"
        "from npu_rl_standins.used import count\ncount('x')\ncount('y')"
    )
    for host in ("node-0", "node-1", "node-1"):
        assert run(code.format(host), tmp_path).returncode == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"npu_rl_standins-node-{end}.txt" for end in ("0-7", "1-7", "1-7.2")}
    assert read_usage(tmp_path)[1] == {"x": 3, "y": 3}


def test_a_fork_counts_in_a_file_of_its_own(tmp_path: Path) -> None:
    done = run(
        "import os\nfrom npu_rl_standins.used import count\ncount('x')\n"
        "pid = os.fork()\ncount('x')\nif pid: os.waitpid(pid, 0)",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 2
    assert read_usage(tmp_path)[1] == {"x": 3}


def test_hooks_and_standins_are_told_apart_and_torn_lines_left_out(tmp_path: Path) -> None:
    (tmp_path / "npu_rl_runtime-7.txt").write_text("           3 hf-rollout-repeats-once\n           1 half")
    (tmp_path / "npu_rl_standins-7.txt").write_text("           5 gloo.all_gather\n   \n")
    (tmp_path / "other.txt").write_text("           9 nothing of ours\n")
    hooks, standins = read_usage(tmp_path)
    assert hooks == {"hf-rollout-repeats-once": 3, "half": 1}
    assert standins == {"gloo.all_gather": 5}
