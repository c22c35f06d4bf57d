"""What `train` refuses before anything is started, beside findings on a recipe. Nothing is recorded then."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.in_process import run_here
from tests.support import clean_env

pytestmark = pytest.mark.pypi
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["device=npu"], 3, "npu-rl train './my own.yaml' --rehearse"),
        (["device=cuda", "cluster.die_memory_gb=80"], 3, "There is no /dev/nvidia0"),
        (["--dry-run", "--resume"], 2, "--dry-run conflicts with --resume"),
        (["--rehearse=train", "--resume"], 2, "--rehearse conflicts with --resume"),
        (["--rehearse=train", "--dry-run"], 2, "--dry-run conflicts with --rehearse"),
        (["benchmark=true"], 2, "--benchmark"),
        (["model.make=null", "model.path=/nonexist"], 1, "there is no folder '/nonexist'"),
        (["--python", "/nowhere/python"], 3, "/nowhere/python"),
        pytest.param(["--rehearse=imprts"], 2, "did you mean 'imports'", marks=pytest.mark.rehearsal),
    ],
)
def test_what_can_not_run_is_refused(
    quickstart_workspace: Path, tmp_path: Path, words: list[str], code: int, part: str
) -> None:
    (tmp_path / "my own.yaml").write_text("extends: quickstart\nname: mine\n")
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    done = run_here(["train", "./my own.yaml", "--workspace", quickstart_workspace, *words], env, tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert part in done.stderr
    assert not (tmp_path / "runs").exists()
