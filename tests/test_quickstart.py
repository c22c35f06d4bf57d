"""The README's first line, on real sdists: set up, proven, found by importlib.metadata."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from npu_rl.stack.lock import lock_model
from tests.support import ROOT, index_env, ok, run_cli, run_program

pytestmark = pytest.mark.pypi

LOCK = lock_model.read(ROOT / "manifests" / "quickstart.lock.json")


@pytest.fixture(scope="module")
def scene(
    quickstart_workspace: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """A folder for what is set up beside the workspace, and the environment of its setup."""
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, index_env(folder, quickstart_workspace.parent / "store")


def test_the_result_is_the_locked_tree(
    quickstart_workspace: Path, scene: tuple[Path, dict[str, str]]
) -> None:
    folder, env = scene
    done = ok(run_cli(["verify", "--deep", "--json", "-w", quickstart_workspace], env, folder))
    body = json.loads(done.stdout)
    assert body["ok"] and (body["lock"]["tree"], body["lock"]["commit"]) == (LOCK.tree, LOCK.commit)
    states = [hunk["state"] for patch in body["patches"] for hunk in patch["hunks"]]
    assert states == ["in place", "in place"]


def test_vllm_from_the_sdist_is_the_tree_of_its_tag(code_tree: Path) -> None:
    found = ok(run_program(["git", "rev-parse", "HEAD:vllm"], cwd=code_tree))
    # vllm v0.9.1 (b6553be1bc75f046b00046a4ad7576364d03c835), folder vllm
    assert found.stdout.strip() == "ea481b57b449cbfec7bd92bec2982da294779400"


def test_the_platform_plugin_and_versions_are_found(code_tree: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.metadata import entry_points, version\n"
        "print(sorted(e.name for e in entry_points(group='vllm.platform_plugins')), version('verl'), version('vllm'))"
    )
    done = ok(run_program([sys.executable, "-I", "-S", "-c", code, code_tree]))
    assert done.stdout.strip() == "['ascend'] 0.5.0 0.9.1+empty"


def test_a_second_workspace_needs_no_network(scene: tuple[Path, dict[str, str]]) -> None:
    folder, env = scene
    done = ok(
        run_cli(["setup", "--manifest", "quickstart", "--offline", "--json", "-w", "second"], env, folder)
    )
    body = json.loads(done.stdout)
    assert (body["lock"]["commit"], body["outcome"]["received"]) == (LOCK.commit, 0)


@pytest.mark.second
def test_the_lock_is_up_to_date(scene: tuple[Path, dict[str, str]]) -> None:
    folder, env = scene
    done = ok(run_cli(["lock", "--check", "--manifest", "quickstart"], env, folder, timeout=300))
    assert "up to date" in done.stdout
