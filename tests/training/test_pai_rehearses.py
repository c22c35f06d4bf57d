"""Pai-Megatron-Patch's recipes from the real upstreams to the dry run and the rehearsal of their layout, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.support import clean_env, rewrites, run_cli

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.upstreams, pytest.mark.rehearsal]

RECIPES = ("pai-deepseek-v3-128gpu", "pai-deepseek-v3-128gpu-mcore-250908")


@pytest.mark.parametrize("name", RECIPES)
def test_up_to_the_layout(name: str, upstreams: Path, tmp_path: Path) -> None:
    manifest = load_recipe(name).recipe.manifest
    env = clean_env(tmp_path) | {"NPU_RL_REWRITE": rewrites(upstreams, manifest)}
    at = ["--workspace", str(tmp_path / "w")]
    done = run_cli(["setup", "--manifest", manifest, *at], env, timeout=600)
    assert done.returncode == 0, done.stderr
    for words in (["recipes", "check"], ["plan"], ["train", "--dry-run"]):
        done = run_cli([*words, name, *at], env, timeout=300)
        assert done.returncode == 0, done.stderr

    done = run_cli(["train", name, *at, "--rehearse=layout", "--json"], env, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["layout"]["checks"]}
    assert all(check["ok"] for check in checks.values())
    assert checks["training groups: expert_tensor"]["figures"] == {"size": 4, "groups": 32}
    shape = "tensor 2, pipeline 2, expert 2, expert_tensor 2"
    assert checks[f"tiny model ({shape}): backward"]["figures"] == {"ranks with all gradients": 8}
    assert "NCCL: gloo" in report["layout"]["stood_in"]
    assert not any("HCCL" in line or "NPU" in line for line in report["only_an_npu_can_show"])

    done = run_cli(["train", name, *at, "--rehearse=train"], env, timeout=600)
    assert done.returncode != 0 and "only with MindSpeed in the tree" in done.stderr
