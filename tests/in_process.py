"""npu-rl commands in the process of the tests, where what a start of Python does is not what is proven.

A start takes 0.3 to 0.5 s of CPU time, and the cache of answers on a tree stays cold in a new HOME.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from npu_rl import cli


def run_here(
    args: Sequence[str | Path], env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`npu-rl ARGS` without a process of its own: as `run_cli`, but an error that is not npu-rl's own is raised.

    The test processes' own cache is used, whatever HOME is.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2))
    words = [*map(str, args)]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("NPU_RL_") and name not in env]:
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["npu-rl", *words])
        if cwd is not None:
            patch.chdir(cwd)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli._run()
            out.flush()
            err.flush()
    said, complained = (stream.detach().getvalue().decode("utf-8") for stream in (out, err))
    return subprocess.CompletedProcess(words, code, said, complained)
