"""The command with little memory and little time: what a hostile input may cost at most."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GB = 1_000_000_000
SECONDS = 10  # of CPU that any one input may cost


@dataclass(frozen=True)
class Cost:
    """A command that has ended: its output and exit code, seconds of CPU and bytes of memory at most."""

    text: str
    code: int
    seconds: float
    memory: int


_MEASURED = """
import json, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
text = done.stdout.decode(errors="replace")
print(json.dumps([text, done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""  # a process of its own: a child's memory counts what its parent had when it was forked


def measured_cli(args: Sequence[str | Path], env: Mapping[str, str]) -> Cost:
    """Run `npu-rl ARGS`, killed after 60 seconds of CPU. Its cost is asserted to be bounded."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, sys.executable, "-m", "npu_rl", *map(str, args)],
        env={**env, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    cost = Cost(*json.loads(done.stdout))
    assert cost.seconds < SECONDS and cost.memory < 1.5 * GB, cost
    assert "Traceback" not in cost.text and "bug in npu-rl" not in cost.text, cost.text
    return cost


def limited_cli(
    args: Sequence[str | Path],
    env: Mapping[str, str],
    *,
    memory: int = GB,
    files: int = 1024,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """`npu-rl ARGS` with `memory` bytes of address space and `files` open files at most.

    Raises TimeoutExpired, a failure of the test, if it does not end in `timeout` seconds.
    """
    script = f'ulimit -v {memory // 1024}; ulimit -n {files}; exec "$0" -m npu_rl "$@"'
    return subprocess.run(
        ["bash", "-c", script, sys.executable, *map(str, args)],
        env={**env, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )
