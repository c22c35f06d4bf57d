"""A disk that is full, or will not take a file: a clear error, the old workspace as it was, and success with room."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.stage import Scene, Stage
from tests.support import Repo, assert_told, command_server, ok, run_cli, run_program
from tests.workspace.stack import snapshot

BIG = 3_000_000  # bytes of a file that packs to nothing (and is no hole), so that only laying it fails


@pytest.fixture(scope="session")
def big(stage: Stage) -> Path:
    """A manifest, with its lock, of the small stack and a file of 3 MB."""
    Repo(stage.home / "big.git").commit({"big/__init__.py": "", "big/text.bin": b"a" * BIG}, "big")
    text = stage.manifest("new").read_text().replace("name: new\n", "name: big\n")
    manifest = stage.manifest("big")
    manifest.write_text(
        f"{text}  big:\n    sources: [{{git: 'file://{stage.home}/big.git'}}]\n    ref: refs/heads/main\n"
        "    take: [{from: big, to: big}]\n"
    )
    ok(run_cli(["lock", "-m", manifest], stage.env))
    return manifest


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[None]:
    """A file system of `size` bytes at an empty folder."""
    place.mkdir(parents=True, exist_ok=True)
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    made = run_program(["mount", "-t", "tmpfs", "-o", f"size={size}", "npu-rl-test", str(place)])
    if made.returncode:
        pytest.skip(f"a small file system can't be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def scene(stage: Stage, tmp_path: Path) -> Scene:
    scene = Scene(stage, tmp_path / "scene")
    scene.reset(old=True)
    return scene


def test_the_workspaces_disk_is_full(scene: Scene, big: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 1_500_000):
        place = disk / "w"
        shutil.copytree(scene.paths.root, place, symlinks=True)
        before = snapshot(place)
        done = run_cli(["setup", "-m", big, "-w", place], scene.env)
        assert_told(done, "the disk may be full", "Free some space", code=3)
        assert snapshot(place) == before
        assert run_cli(["verify", "--deep", "-w", place], scene.env).returncode == 0
        subprocess.run(["mount", "-o", "remount,size=20000000", str(disk)], check=True)
        ok(run_cli(["setup", "-m", big, "-w", place], scene.env))
        assert (place / "code/big/text.bin").stat().st_size == BIG
        assert run_cli(["verify", "--deep", "-w", place], scene.env).returncode == 0


def test_the_stores_disk_is_full(scene: Scene, big: Path, tmp_path: Path) -> None:
    store = tmp_path / "disk/store"
    with small_disk(store.parent, 20 * 4096):
        before = snapshot(scene.paths.root)
        done = run_cli(
            ["setup", "-m", big, "-w", scene.paths.root], {**scene.env, "NPU_RL_STORE": str(store)}
        )
        assert_told(done, "The disk is full", code=3)
        assert snapshot(scene.paths.root) == before
        subprocess.run(["mount", "-o", "remount,size=20000000", str(store.parent)], check=True)
        ok(run_cli(["setup", "-m", big, "-w", scene.paths.root], {**scene.env, "NPU_RL_STORE": str(store)}))
        assert os.listdir(store / "tmp") == []


@pytest.mark.parametrize("limit", [2_000_000, 3_000])
def test_a_file_that_is_too_large_for_the_disk(scene: Scene, big: Path, limit: int) -> None:
    """A second way for a write to fail, which needs no privileges: the kernel's limit on the size of files."""
    before = snapshot(scene.paths.root)
    done = command_server().run(
        ["setup", "-m", str(big), "-w", str(scene.paths.root)], scene.env, "/", 60,
        ["resource:setrlimit", resource.RLIMIT_FSIZE, [limit, limit]],
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "too large for this disk" in done.stderr or "could not write a file" in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot(scene.paths.root) == before
    scene.check("old")
    ok(run_cli(["setup", "-m", big, "-w", scene.paths.root], scene.env))
    assert run_cli(["verify", "--deep", "-w", scene.paths.root], scene.env).returncode == 0
    assert scene.leftovers() == []
