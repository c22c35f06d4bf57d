"""The recipes of Pai-Megatron-Patch: layout, memory and environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.recipes.source_tables import changed
from tests.support import clean_env, git, rewrites, run_cli

NAME, EDITED = "pai-deepseek-v3-128gpu", "pai-deepseek-v3-128gpu-mcore-250908"
SCRIPT = "examples/deepseek_v3/run_mcore_deepseek_verl.sh"
SMALLER = ["cluster.die_memory_gb=96"]


def test_the_documents_layout() -> None:
    layout = judge(load_recipe(NAME)).plan.facts.layout
    assert layout is not None
    train = layout.train
    assert (train.tensor, train.pipeline, train.expert, train.expert_tensor) == (4, 16, 2, 4)
    assert layout.world == 128 and list(layout.stage_layers) == [3, *[4] * 14, 2]
    assert layout.rollout is not None and layout.rollout.tensor == 32


def test_it_fits_in_141_gb_and_not_in_96() -> None:
    assert judge(load_recipe(NAME)).errors == ()
    smaller = judge(load_recipe(NAME, SMALLER))
    assert smaller.errors == (), "no run on GPUs was measured"
    cache = next(one for one in smaller.findings if one.rule == "kv-cache-room")
    assert "not one sequence fits" in cache.message, "the engine's share holds its weights and no cache"


def test_the_other_differs_by_its_manifest_alone() -> None:
    assert changed(NAME, EDITED) == {"name", "title", "manifest", "extends"}


@pytest.fixture(scope="module")
def locked() -> lock_model.LockedComponent:
    lock = lock_model.read(lock_model.lock_path(load_manifest("pai-megatron-deepseek-v3").path))
    return lock.components["Pai-Megatron-Patch"]


@pytest.mark.upstreams
def test_the_manifest_has_the_scripts_environment(
    upstreams: Path, locked: lock_model.LockedComponent
) -> None:
    text = git("show", f"{locked.pin}:{SCRIPT}", git_dir=upstreams / "alibaba+Pai-Megatron-Patch" / "repo")
    exported = dict(re.findall(r"^export ((?:CUDA|RAY|VLLM)_\w+)=(\S+)$", text, re.MULTILINE))
    assert exported == load_manifest("pai-megatron-deepseek-v3").manifest.env


@pytest.mark.upstreams
@pytest.mark.parametrize("name", [NAME, EDITED])
def test_its_own_tree_takes_it(upstreams: Path, tmp_path: Path, name: str) -> None:
    """Every key is read there, and nothing of it is advised against but the prompts that are not filtered."""
    manifest = load_recipe(name).recipe.manifest
    env = clean_env(tmp_path) | {"NPU_RL_REWRITE": rewrites(upstreams, manifest)}
    done = run_cli(["setup", "-m", manifest, "-w", tmp_path / "w"], env, tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    judgement = judge(load_recipe(name), AssembledTree(tmp_path / "w" / "code", manifest))
    assert judgement.errors == ()
    assert {one.rule for one in judgement.findings} == {"overlong-prompts"}
    smaller = judge(load_recipe(name, SMALLER), AssembledTree(tmp_path / "w" / "code", manifest))
    update = next(one for one in smaller.findings if one.rule == "memory-update")
    assert "118.9 GB, of 96.0 GB" in update.message and "no measured run has device cuda" in update.message
