"""The manifests of Pai-Megatron-Patch on the real upstreams: locked as committed, set up, proven."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.support import clean_env, git, ok, rewrites, run_cli

pytestmark = pytest.mark.upstreams

# The Megatron-LM that each manifest takes, its version, and where latent attention's down projections are.
MANIFESTS = {
    "pai-megatron-deepseek-v3": ("250624", "MINOR = 14", (139, 141)),
    "pai-megatron-deepseek-v3-mcore-250908": ("250908", "MINOR = 15", (148, 150)),
}
COMPONENT = "Pai-Megatron-Patch"
SPECS = "megatron/core/models/gpt/gpt_layer_specs.py"


@pytest.fixture(scope="module", params=sorted(MANIFESTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def env(name: str, upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return clean_env(tmp_path_factory.mktemp("pai")) | {"NPU_RL_REWRITE": rewrites(upstreams, name)}


def test_the_lock_is_up_to_date_and_the_workspace_proven(
    name: str, env: dict[str, str], tmp_path: Path
) -> None:
    done = run_cli(["lock", "-m", name, "--check"], env, tmp_path, timeout=600)
    assert done.returncode == 0 and "is up to date" in done.stdout, done.stderr
    ok(run_cli(["setup", "-m", name, "-w", tmp_path / "w"], env, tmp_path, timeout=600))
    done = run_cli(["verify", "-w", tmp_path / "w", "--deep", "--json"], env, timeout=600)
    report = json.loads(done.stdout)
    lock = lock_model.read(lock_model.lock_path(load_manifest(name).path))
    assert (report["ok"], report["lock"]["tree"]) == (True, lock.tree)

    code = tmp_path / "w" / "code"
    megatron, version, down_projections = MANIFESTS[name]
    assert version in (code / "megatron/core/package_info.py").read_text()
    for place in (
        "examples/qwen3/verl_entrypoint.py",
        "verl_patch/workers/megatron_workers.py",
        "megatron/training/checkpointing.py",
    ):
        assert (code / place).is_file(), place
    lines = (code / SPECS).read_text().splitlines()
    for number, projection in zip(down_projections, ("q", "kv"), strict=True):
        assert lines[number - 1].strip() == f"linear_{projection}_down_proj=backend.column_parallel_linear(),"
    assert any(one.path.endswith(f"Megatron-LM-{megatron}") for one in lock.components[COMPONENT].submodules)


def test_the_commits_are_those_of_the_repository(name: str, upstreams: Path) -> None:
    locked = lock_model.read(lock_model.lock_path(load_manifest(name).path)).components[COMPONENT]
    repository = upstreams / "alibaba+Pai-Megatron-Patch" / "repo"
    assert locked.submodules
    for submodule in locked.submodules:
        entry = git("ls-tree", str(locked.pin), submodule.path, git_dir=repository)
        assert entry.split()[:3] == ["160000", "commit", submodule.pin]


def test_the_launch_scripts_run_the_first(upstreams: Path) -> None:
    """Why there are two: the scripts never put the Megatron-LM on the path that the document has edited."""
    lock = lock_model.read(lock_model.lock_path(load_manifest("pai-megatron-deepseek-v3").path))
    repository = upstreams / "alibaba+Pai-Megatron-Patch" / "repo"
    for script in (
        "examples/deepseek_v3/run_mcore_deepseek_verl.sh",
        "toolkits/distributed_checkpoints_convertor/scripts/deepseek_v3/run_32xH20.sh",
    ):
        text = git("show", f"{lock.components[COMPONENT].pin}:{script}", git_dir=repository)
        assert "Megatron-LM-250624" in text and "Megatron-LM-250908" not in text
