"""`deepseek-v3-cann` on the real upstreams: locked as committed, set up, proven, found by vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.manifest import lock as lock_file
from npu_rl.manifest.load import load_manifest
from tests.support import clean_env, git, run_cli

pytestmark = [pytest.mark.upstreams, pytest.mark.pypi]

NAME = "deepseek-v3-cann"
# The tree of vllm-ascend after both requests, as its branch has it in f20869ef.
VLLM_ASCEND = "3b27db44f47b275263daad1afab7041a1f43f3f8"
PIP = [name for name in os.environ if name.startswith("PIP_")]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which every git URL of the manifest leads to a folder of `NPU_RL_UPSTREAMS`."""
    named = os.environ.get("NPU_RL_UPSTREAMS")
    if not named:
        pytest.skip("NPU_RL_UPSTREAMS names no folder with the real upstreams (OWNER+NAME/repo, bare)")
    folders = {path.parent.name.partition("+")[2].lower(): path for path in Path(named).glob("*+*/repo")}
    rules = []
    for component in load_manifest(NAME).manifest.components.values():
        for url in filter(None, (source.git for source in component.sources)):
            project = url.rpartition("/")[2].removesuffix(".git").lower()
            if project in folders:
                rules.append(f"{url}={folders[project].absolute()}")
    env = clean_env(tmp_path_factory.mktemp("deepseek"), keep=PIP)
    env["HOME"] = os.environ.get("HOME", env["HOME"])  # the user's pip configuration names the mirror
    return {**env, "NPU_RL_REWRITE": "\n".join(rules)}


@pytest.fixture(scope="module")
def workspace(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    done = run_cli(["setup", "-m", NAME, "-w", folder / "w"], env, folder, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "w"


def test_the_committed_lock_is_up_to_date(env: dict[str, str], tmp_path: Path) -> None:
    done = run_cli(["lock", "-m", NAME, "--check"], env, tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "is up to date" in done.stdout


def test_the_requests_give_the_repositorys_own_tree(env: dict[str, str]) -> None:
    lock = lock_file.read(lock_file.file_for(load_manifest(NAME).path))
    ascend = lock.components["vllm-ascend"]
    assert ascend.repository == VLLM_ASCEND
    upstream = Path(os.environ["NPU_RL_UPSTREAMS"]) / "vllm-project+vllm-ascend" / "repo"
    assert git("rev-parse", f"{VLLM_ASCEND}:vllm_ascend", git_dir=upstream) == git(
        "rev-parse", f"{ascend.merges[-1].head}:vllm_ascend", git_dir=upstream
    )


def test_the_workspace_is_proven(env: dict[str, str], workspace: Path) -> None:
    lock = lock_file.read(lock_file.file_for(load_manifest(NAME).path))
    done = run_cli(["verify", "-w", workspace, "--deep", "--json"], env, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert (report["ok"], report["tree"], report["commit"]) == (True, lock.tree, lock.commit)
    assert {hunk["state"] for patch in report["patches"] for hunk in patch["hunks"]} == {"in place"}
    for path in (
        "verl/trainer/main_ppo_npu.py",
        "verl_patches/prelude_patch.py",
        "mindspeed_llm/__init__.py",
    ):
        assert (workspace / "code" / path).is_file(), path


def test_vllm_finds_its_plugin_in_a_clean_interpreter(workspace: Path) -> None:
    program = f"""
import sys
sys.path = [p for p in sys.path if 'site-packages' not in p] + [{str(workspace / "code")!r}]
from importlib.metadata import entry_points, version
(point,) = [p for p in entry_points(group='vllm.platform_plugins') if p.name == 'ascend']
print(point.value, version('vllm'), version('verl'), version('megatron-core'))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["vllm_ascend:register", "0.9.1+empty", "0.3.1.dev0", "0.8.0"], done.stderr
