"""A damaged store and a broken connection: found, fetched again, and never part of a workspace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.faults.stage import Scene, Stage
from tests.support import Repo, assert_told, http_git, ok, run_cli
from tests.workspace.stack import snapshot

pytestmark = pytest.mark.second

Damage = Callable[[Path], None]


@pytest.fixture
def scene(stage: Stage, tmp_path: Path) -> Scene:
    scene = Scene(stage, tmp_path / "scene")
    scene.reset(old=True)
    return scene


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # packs are shared with workspaces: their copies are to stay whole
    path.write_bytes(data)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("what", "damage"), [("*.pack", flip), ("*.pack", cut), ("*.idx", flip), ("unit.json", remove)]
)
def test_every_unit_of_the_store_is_damaged(scene: Scene, what: str, damage: Damage) -> None:
    files = list((scene.store / "units").rglob(what))
    assert len(files) >= 3
    for path in files:
        damage(path)
    before = snapshot(scene.paths.root)
    other = scene.folder / "other"
    ok(run_cli(["setup", "-m", scene.stage.manifest("old"), "-w", other], scene.env))
    ok(run_cli(["verify", "--deep", "-w", other], scene.env))
    assert os.listdir(scene.store / "tmp") == []
    assert snapshot(scene.paths.root) == before
    scene.check("old")


def test_without_the_network_damage_is_an_error_that_says_so(scene: Scene) -> None:
    for path in (scene.store / "units").rglob("*.pack"):
        flip(path)
    other = scene.folder / "other"
    done = run_cli(["setup", "-m", scene.stage.manifest("old"), "-w", other, "--offline"], scene.env)
    assert_told(done, "is not in the local store")
    assert not (other / "code").exists()


def test_damaged_objects_of_a_workspace_lose_no_work(scene: Scene) -> None:
    """They are told of, the next setup has no need of them, and what a person did is kept."""
    paths = scene.paths
    for path in paths.git.rglob("*.pack"):
        flip(path)
    for options in ([], ["--deep"]):
        done = run_cli(["verify", "-w", paths.root, *options], scene.env)
        assert done.returncode == 3
        assert "modified   .npu-rl/git/objects/pack/" in done.stdout
    (paths.code / "one/more.py").write_text("mine\n")
    assert scene.setup("new").returncode == 3
    scene.check_again("new", "--discard")
    (kept,) = paths.kept.iterdir()
    assert (kept / "code/one/more.py").read_text() == "mine\n"


def test_a_connection_that_breaks_in_mid_pack(scene: Scene, tmp_path: Path) -> None:
    """Once: tried again. For good: an error, and the old workspace as it was."""
    stage = scene.stage
    served = tmp_path / "served"
    Repo(served / "large.git").commit(
        {"large/__init__.py": "", "large/noise.bin": os.urandom(200_000)}, "large"
    )
    with http_git(served) as server:
        manifest = tmp_path / "large.yaml"
        manifest.write_text(
            "schema: 1\nname: large\ntitle: large\ndevice: cpu\ncomponents:\n"
            f"  large:\n    sources: [{{git: '{server.url('large.git')}'}}]\n    ref: refs/heads/main\n"
            "    take: [{from: large, to: large}]\n"
        )
        maker = {**stage.env, "NPU_RL_STORE": str(tmp_path / "maker")}
        assert run_cli(["lock", "-m", manifest], maker).returncode == 0
        before = snapshot(scene.paths.root)
        server.cut_after, server.cuts = 100_000, 1000
        env = {**scene.env, "NPU_RL_RETRIES": "1"}
        done = run_cli(["setup", "-m", manifest, "-w", scene.paths.root], env)
        assert_told(done, "No source delivered large")
        assert snapshot(scene.paths.root) == before
        assert os.listdir(scene.store / "tmp") == []
        server.cuts = 1
        asked = len(server.requests)
        ok(run_cli(["setup", "-m", manifest, "-w", scene.paths.root], env))
        assert len(server.requests) > asked + 2
    assert run_cli(["verify", "--deep", "-w", scene.paths.root], scene.env).returncode == 0
    assert WorkspacePaths(scene.paths.root).code.joinpath("large/noise.bin").stat().st_size == 200_000
    assert scene.leftovers() == []
