from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from npu_rl.common.python_roots import INJECTED, NPU, REHEARSAL, TENSORS
from tests.support import byte_code


@pytest.fixture(scope="session")
def torch_npu() -> ModuleType:
    """The stand-in, in this process. Reading "npu" as the CPU changes nothing for other tests; `transfer_to_npu` would,
    so that is imported only in processes of its own."""
    pytest.importorskip("torch")
    sys.path[:0] = [str(INJECTED), str(REHEARSAL), str(NPU)]
    try:
        import torch_npu
    finally:
        del sys.path[:2]
    return torch_npu


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a process of its own with the stand-in on PYTHONPATH."""
    pytest.importorskip("torch")

    def run(
        *arguments: str | Path, path: tuple[Path, ...] = (), check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        already = os.environ.get("PYTHONPATH", "")
        places = [
            str(INJECTED),
            str(REHEARSAL),
            str(TENSORS),
            str(NPU),
            *map(str, path),
            *([already] if already else []),
        ]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(places),
                **byte_code(),
                "TORCHDYNAMO_DISABLE": "1",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            timeout=300,
        )
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done

    return run
