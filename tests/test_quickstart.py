"""The README's first line, on real sdists: set up, proven, found by importlib.metadata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clean_env, run_cli

pytestmark = pytest.mark.pypi

PIP = [name for name in os.environ if name.startswith("PIP_")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], dict[str, object]]:
    folder = tmp_path_factory.mktemp("quickstart")
    env = clean_env(folder, keep=PIP)
    env["HOME"] = os.environ.get("HOME", env["HOME"])  # the user's pip configuration names the mirror
    done = run_cli(["setup", "--manifest", "quickstart", "--json"], env, folder, timeout=300)
    if done.returncode and "index" in done.stderr and not os.environ.get("NPU_RL_REQUIRE_PYPI"):
        pytest.skip(f"no PyPI index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder, env, json.loads(done.stdout)


def test_the_result_is_the_locked_tree(workspace: tuple[Path, dict[str, str], dict[str, object]]) -> None:
    folder, env, report = workspace
    proven = run_cli(["verify", "--deep", "--json"], env, folder)
    assert proven.returncode == 0, proven.stderr
    body = json.loads(proven.stdout)
    assert body["ok"] and body["tree"] == report["tree"] and body["commit"] == report["commit"]
    states = [hunk["state"] for patch in body["patches"] for hunk in patch["hunks"]]
    assert states == ["in place", "in place"]


def test_vllm_from_the_sdist_is_the_tree_of_its_tag(
    workspace: tuple[Path, dict[str, str], dict[str, object]],
) -> None:
    folder, _, _ = workspace
    found = subprocess.run(
        ["git", "rev-parse", "HEAD:vllm"],
        cwd=folder / "npu-rl-workspace" / "code",
        capture_output=True,
        text=True,
        check=True,
    )
    # vllm v0.9.1 (b6553be1bc75f046b00046a4ad7576364d03c835), folder vllm
    assert found.stdout.strip() == "ea481b57b449cbfec7bd92bec2982da294779400"


def test_the_platform_plugin_and_versions_are_found(
    workspace: tuple[Path, dict[str, str], dict[str, object]],
) -> None:
    folder, _, _ = workspace
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.metadata import entry_points, version\n"
        "print(sorted(e.name for e in entry_points(group='vllm.platform_plugins')), version('verl'), version('vllm'))"
    )
    tree = str(folder / "npu-rl-workspace" / "code")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, tree], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['ascend'] 0.5.0 0.9.1+empty"


def test_a_second_workspace_needs_no_network(
    workspace: tuple[Path, dict[str, str], dict[str, object]],
) -> None:
    folder, env, report = workspace
    done = run_cli(["setup", "--manifest", "quickstart", "--offline", "--json", "-w", "second"], env, folder)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert (body["tree"], body["bytes_received"]) == (report["tree"], 0)


def test_the_lock_is_up_to_date(workspace: tuple[Path, dict[str, str], dict[str, object]]) -> None:
    folder, env, _ = workspace
    done = run_cli(["lock", "--check", "--manifest", "quickstart"], env, folder, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout
