"""The command with little memory and little time: what a hostile input may cost at most."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

GB = 1_000_000_000


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
