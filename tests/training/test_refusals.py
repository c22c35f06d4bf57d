"""What `train` refuses before anything is started, with the message a person gets. Nothing is recorded then."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.in_process import run_here
from tests.support import clean_env, run_cli

pytestmark = pytest.mark.pypi
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}


def refused(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path, *words: str | Path, code: int
) -> str:
    done = run_here(["train", "quickstart", "--workspace", quickstart_workspace, *words], env, tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()
    return done.stderr


def test_an_npu_recipe_without_npus(quickstart_workspace: Path, env: dict[str, str], tmp_path: Path) -> None:
    said = refused(quickstart_workspace, env, tmp_path, "device=npu", code=3)
    assert "quickstart is for NPUs, and this machine shows none" in said
    assert "npu-rl train quickstart --rehearse" in said


def test_the_recipe_is_named_as_it_was_given(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "my own.yaml").write_text("extends: quickstart\nname: mine\ndevice: npu\n")
    words = ["train", "./my own.yaml", "name=other", "--workspace", quickstart_workspace]
    done = run_here(words, env, tmp_path)
    assert done.returncode == 3, done.stderr
    assert "npu-rl train './my own.yaml' --rehearse" in done.stderr


def test_a_gpu_recipe_without_gpus(quickstart_workspace: Path, env: dict[str, str], tmp_path: Path) -> None:
    words = ("device=cuda", "cluster.die_memory_gb=80")
    said = refused(quickstart_workspace, env, tmp_path, *words, code=3)
    assert "quickstart is for NVIDIA GPUs, and this machine shows none" in said
    assert "/dev/nvidia0" in said and "npu-rl train quickstart --rehearse" in said


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (
            ["rollout.response=4"],
            2,
            ["Invalid argument 'rollout.response=4'", "did you mean 'rollout.responses'"],
        ),
        (["optimizer.lr=fast"], 2, ["Invalid argument 'optimizer.lr=fast'", "must be a number"]),
        (["actor.parallel.tensor=2"], 1, ["actor.parallel.tensor has no effect with fsdp"]),
        (
            ["overrides.actor_rollout_ref.rollout.temperatur=1"],
            1,
            ["Write rollout.temperature in place of"],
        ),
        (["overrides.trainer.device=cuda"], 1, ["trainer.device is npu-rl's to set"]),
        (
            ["adaptations.hf-rollout-repeat-once=false"],
            1,
            ["Write adaptations.hf-rollout-repeats-once in place of"],
        ),
        (["data.batch=8", "actor.mini_batch=16"], 1, ["1 error", "is smaller than the mini batch of 16"]),
        (["cluster.nodes=2"], 1, ["cluster.nodes: device cpu, 2 nodes", "runs on one machine"]),
        (
            ["cluster.address=nonsense"],
            2,
            ["Invalid argument 'cluster.address=nonsense'", "must be HOST:PORT"],
        ),
        (["model.make=null", "model.path=/nonexist"], 1, ["there is no folder '/nonexist'"]),
        (["env.HCCL_BUFFSIZE=300MB"], 1, ["next:  Set env.HCCL_BUFFSIZE to 300"]),
        (
            ["env.VLLM_USE_V1=maybe", "--dry-run"],
            1,
            ["(vllm/envs.py)", "Set env.VLLM_USE_V1 to a whole number"],
        ),
        (
            ["reward.function=npu_rl_runtime/rewards/digit_shar.py"],
            1,
            ["rewards/digit_share.py:compute_score"],
        ),
        (["--dry-run", "--resume"], 2, ["--dry-run conflicts with --resume"]),
        (["--rehearse=train", "--resume"], 2, ["--rehearse conflicts with --resume"]),
        (["--rehearse=train", "--dry-run"], 2, ["--dry-run conflicts with --rehearse"]),
        (["benchmark=true"], 2, ["quickstart is for timing", "--benchmark"]),
        (["steps"], 2, ["steps"]),
        (
            ["manifest=deepseek-v3-cann"],
            1,
            ["the recipe is for deepseek-v3-cann", "npu-rl setup --manifest", "[workspace-manifest]"],
        ),
        (["--python", "/nowhere/python"], 3, ["/nowhere/python", "--python"]),
        (["--rehearse=imprts"], 2, ["did you mean 'imports'"]),
    ],
)
def test_what_is_wrong_is_told(
    quickstart_workspace: Path,
    env: dict[str, str],
    tmp_path: Path,
    words: list[str],
    code: int,
    parts: list[str],
) -> None:
    if words == ["--rehearse=imprts"] and not HAS_TORCH:
        pytest.skip("the level is looked at after the interpreter, which has no torch here")
    said = refused(quickstart_workspace, env, tmp_path, *words, code=code)
    assert all(part in said for part in parts), said


@pytest.mark.skipif(HAS_TORCH, reason="this interpreter has what the quickstart requires")
def test_an_interpreter_that_lacks_the_packages(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path
) -> None:
    said = refused(quickstart_workspace, env, tmp_path, code=3)
    assert "torch==2.13.0: not installed" in said and "ray==2.42.1: not installed" in said
    assert "npu-rl[rehearsal]" in said


def test_a_tree_that_was_changed(quickstart_workspace: Path, env: dict[str, str], tmp_path: Path) -> None:
    ours = tmp_path / "ws"
    shutil.copytree(quickstart_workspace, ours, symlinks=True)
    with (ours / "code" / "verl" / "trainer" / "main_ppo.py").open("a") as file:
        file.write("# mine\n")
    done = run_cli(["train", "quickstart", "--workspace", ours], env, tmp_path)
    assert done.returncode == 3
    assert "code/verl/trainer/main_ppo.py" in done.stderr and "npu-rl diff" in done.stderr


@pytest.mark.rehearsal
@pytest.mark.skipif(not HAS_TORCH, reason="Hydra composes in an interpreter with the packages of `rehearsal`")
def test_a_dry_run_writes_and_starts_nothing(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path
) -> None:
    done = run_cli(
        [
            "train",
            "quickstart",
            "optimizer.lr=1e-6",
            "--workspace",
            quickstart_workspace,
            "--dry-run",
            "--json",
        ],
        env,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    folder = Path(told["folder"])
    assert sorted(told["files"]) == sorted(path.name for path in folder.iterdir())
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quickstart.dry-run"]
    assert (
        json.loads((folder / "composed.json").read_text())["actor_rollout_ref"]["actor"]["optim"]["lr"]
        == 1e-6
    )
    assert "actor_rollout_ref.actor.optim.lr=1e-06" in json.loads((folder / "command.json").read_text())
    assert "1e-6  # command line: optimizer.lr=1e-6" in (folder / "recipe.yaml").read_text()
    assert os.access(folder / "run.sh", os.X_OK)
