"""What vLLM finds on the path: the stand-ins' platform, or an error that says why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.training.host import vllm_environment
from tests.standins.vllm.conftest import environment, write_dist_info

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.mark.pypi
@pytest.mark.parametrize("version", ["0.9.2+empty", "0.9.1+empty"])
def test_vllm_itself_says_so(vllm_tree: Path, tmp_path: Path, version: str) -> None:
    """vLLM hides what a plugin raises while it looks for one; this error is not among that."""
    (tmp_path / "vllm").symlink_to(vllm_tree / "vllm")
    write_dist_info(tmp_path, version)
    code = "from vllm.platforms import current_platform as p; print(type(p).__name__, p.is_cpu())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment(tmp_path, VLLM_LOGGING_LEVEL="ERROR"),
        capture_output=True,
        text=True,
        check=False,
    )
    if version == "0.9.1+empty":
        assert done.stdout.split() == ["StandInCpuPlatform", "True"], done.stderr
    else:
        assert "npu-rl's stand-ins for vLLM are for 0.9.1" in done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1


WITHOUT_NUMBA = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec

@staticmethod
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in ("numba", "llvmlite") else find(name, path, target)

PathFinder.find_spec = find_spec
"""


@pytest.mark.pypi
def test_numba_may_be_missing(vllm_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_NUMBA)
    env = environment(vllm_tree, VLLM_LOGGING_LEVEL="ERROR")
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    code = "from vllm.v1.worker.cpu_worker import CPUWorker; import vllm.v1.worker.gpu_model_runner as m; "
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{code}print(CPUWorker.__name__); m.NgramProposer()"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["CPUWorker"], done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "NoCpuVersion: vllm.v1.spec_decode.ngram_proposer.NgramProposer" in last


@pytest.mark.pypi
def test_nothing_is_asked_for_that_vllm_does_not_read(vllm_tree: Path) -> None:
    read = (vllm_tree / "vllm" / "envs.py").read_text()
    assert [
        name for name in vllm_environment.ENVIRONMENT if f'"{name}"' not in read and f"'{name}'" not in read
    ] == []
