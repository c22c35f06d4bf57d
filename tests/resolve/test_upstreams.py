"""The manifests from git on the real upstreams: locked as committed, set up, proven, found by vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.support import git, index_env, ok, rewrites, run_cli, run_program

pytestmark = [pytest.mark.upstreams, pytest.mark.pypi]

# Files of each manifest's tree.
MANIFESTS = {
    "deepseek-v3-cann": (
        "verl/trainer/main_ppo_npu.py",
        "verl_patches/prelude_patch.py",
        "mindspeed_llm/__init__.py",
    ),
    "deepseek-r1-zero": (
        "verl/workers/megatron_workers.py",
        "tools/converter_hf_to_mcore.py",
        "mindspeed/megatron_adaptor.py",
    ),
    "mindspeed-rl-grpo": (
        "cli/train_grpo.py",
        "configs/grpo_qwen25_7b_A3.yaml",
        "mindspeed_rl/trainer/grpo_trainer_hybrid.py",
        "mindspeed_llm/__init__.py",
        "vllm_ascend/patch_module.py",
    ),
    "verl-npu-plugin": (
        "recipe/dapo/main_dapo.py",
        "verl/workers/sharding_manager/hybrid_tp_config.py",
        "transformers/models/qwen3_moe/modeling_qwen3_moe.py",
        "vllm_ascend/_build_info.py",
    ),
    "today": ("verl/workers/engine_workers.py", "vllm/_version.py", "mbridge/__init__.py"),
    "newest": ("verl/trainer/main_ppo_v0.py", "vllm/_version.py", "mbridge/__init__.py"),
}
_SINCE_0_18 = [
    "ascend_kv_connector=vllm_ascend:register_connector",
    "ascend_model_loader=vllm_ascend:register_model_loader",
    "ascend_service_profiling=vllm_ascend:register_service_profiling",
]
PLUGINS = {"today": _SINCE_0_18, "newest": ["ascend_model=vllm_ascend:register_model", *_SINCE_0_18]}
"""The general plugins of vllm-ascend's setup.py, where they are not the one of the older versions."""
# The tree of vllm-ascend after both requests, as its branch has it in f20869ef.
VLLM_ASCEND = "3b27db44f47b275263daad1afab7041a1f43f3f8"


@pytest.fixture(scope="module", params=sorted(MANIFESTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def env(name: str, upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which every git URL of the manifest leads to a folder of `NPU_RL_UPSTREAMS`."""
    return {**index_env(tmp_path_factory.mktemp("deepseek")), "NPU_RL_REWRITE": rewrites(upstreams, name)}


@pytest.fixture(scope="module")
def workspace(name: str, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    ok(run_cli(["setup", "-m", name, "-w", folder / "w"], env, folder, timeout=600))
    return folder / "w"


def test_the_committed_lock_is_up_to_date(name: str, env: dict[str, str], tmp_path: Path) -> None:
    done = ok(run_cli(["lock", "-m", name, "--check"], env, tmp_path, timeout=600))
    assert "is up to date" in done.stdout


def test_the_requests_give_the_repositorys_own_tree(upstreams: Path) -> None:
    lock = lock_model.read(lock_model.lock_path(load_manifest("deepseek-v3-cann").path))
    ascend = lock.components["vllm-ascend"]
    assert ascend.repository == VLLM_ASCEND
    upstream = upstreams / "vllm-project+vllm-ascend" / "repo"
    assert git("rev-parse", f"{VLLM_ASCEND}:vllm_ascend", git_dir=upstream) == git(
        "rev-parse", f"{ascend.merges[-1].head}:vllm_ascend", git_dir=upstream
    )


# Patches whose hunk a later patch of the stack extends, such as an import that gets a second name.
EXTENDED = {
    "deepseek-r1-zero": ["0007-on-policy-logprob"],
    "today": ["0001-router-groups", "0010-router-bias"],
    "newest": ["0001-router-groups"],
}


def test_the_workspace_is_proven(name: str, env: dict[str, str], workspace: Path) -> None:
    lock = lock_model.read(lock_model.lock_path(load_manifest(name).path))
    done = ok(run_cli(["verify", "-w", workspace, "--deep", "--json"], env, timeout=600))
    report = json.loads(done.stdout)
    assert (report["ok"], report["lock"]["tree"], report["lock"]["commit"]) == (True, lock.tree, lock.commit)
    assert len(report["patches"]) == len(list(lock.patches()))
    states = {(patch["name"], hunk["state"]) for patch in report["patches"] for hunk in patch["hunks"]}
    assert {one for one in states if one[1] != "in place"} == {
        (patch, "superseded") for patch in EXTENDED.get(name, ())
    }
    for path in MANIFESTS[name]:
        assert (workspace / "code" / path).is_file(), path


def test_mindspeed_finds_no_megatron_training(name: str, workspace: Path) -> None:
    """Beside Megatron-core 0.12.1 MindSpeed dies of it; that of 0.8.0 needs it."""
    assert (workspace / "code/megatron/training").exists() == (
        name in ("deepseek-v3-cann", "mindspeed-rl-grpo")
    )


def test_vllm_finds_its_plugin_in_a_clean_interpreter(name: str, workspace: Path) -> None:
    lock = lock_model.read(lock_model.lock_path(load_manifest(name).path))
    versions = {one.dist.name: one.dist.version for one in lock.components.values() if one.dist}
    assert versions.keys() >= {"vllm", "megatron-core", "mindspeed"}
    program = f"""
import sys
sys.path = [p for p in sys.path if 'site-packages' not in p] + [{str(workspace / "code")!r}]
from importlib.metadata import entry_points, version
for group in ('vllm.platform_plugins', 'vllm.general_plugins'):
    print(*sorted(f'{{p.name}}={{p.value}}' for p in entry_points(group=group)))
print(*[version(dist) for dist in {list(versions)!r}])
"""
    done = run_program([sys.executable, "-I", "-B", "-c", program])
    assert done.stdout.splitlines() == [
        "ascend=vllm_ascend:register",
        " ".join(sorted(PLUGINS.get(name, ["ascend_enhanced_model=vllm_ascend:register_model"]))),
        " ".join(versions.values()),
    ], done.stderr
