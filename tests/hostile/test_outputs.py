"""What a command writes to: a file that a person named, or a store that somebody damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.test_bounds import small
from tests.resolve.world import World
from tests.support import assert_told, ok, run_cli


def a_fifo(place: Path) -> None:
    os.mkfifo(place)


def a_folder(place: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("make", [a_fifo, a_folder])
def test_no_lock_is_written_over_what_is_no_file(
    make: Callable[[Path], None], world: World, tmp_path: Path
) -> None:
    manifest = small(world)
    place = tmp_path / "private" / "out.json"
    place.parent.mkdir()
    make(place)
    before = place.lstat()
    done = run_cli(["lock", "-m", manifest, "--output", place], world.env)
    assert_told(done, "where", code=2)
    assert os.path.samestat(place.lstat(), before)
    assert not any(p.name.startswith(".") for p in place.parent.iterdir())


def test_a_lock_is_written_through_a_link_and_keeps_its_permissions(world: World, tmp_path: Path) -> None:
    manifest = small(world)
    real, link = tmp_path / "real" / "a.json", tmp_path / "link.json"
    real.parent.mkdir()
    real.write_text('{"lock_format": 1, "damaged')
    real.chmod(0o604)
    link.symlink_to(real)
    assert run_cli(["lock", "-m", manifest, "-o", link], world.env).returncode == 0
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o604
    assert '"lock_format": 1' in real.read_text()
    real.unlink()  # a dangling link: the file it leads to is made, as by a shell's `>`
    assert run_cli(["lock", "-m", manifest, "-o", link], world.env).returncode == 0
    assert link.is_symlink() and real.is_file()
    shutil.rmtree(real.parent)
    assert_told(run_cli(["lock", "-m", manifest, "-o", link], world.env), "The folder does not exist", code=2)


@pytest.mark.parametrize("name", ["m.yaml", "m.lock.json", "link"])
def test_a_file_that_is_not_a_lock_is_not_overwritten(name: str, world: World) -> None:
    """The manifest itself, another tool's file in the lock's place, and one that a link leads to."""
    manifest = small(world)
    place = manifest.with_name(name)
    if name == "link":
        world.write("precious", "mine")
        place.symlink_to("precious")
    elif name == "m.lock.json":
        place.write_text('{"lockfileVersion": 3}')
    before = place.read_bytes()
    named = [] if name == "m.lock.json" else ["-o", place]
    assert_told(run_cli(["lock", "-m", manifest, *named], world.env), "not a lock", code=2)
    assert place.read_bytes() == before and place.is_symlink() == (name == "link")
    for text in ("", '{\n "lock_format": 1,\n<<<<<<< HEAD\n'):  # empty, or a lock with conflict markers
        (manifest.with_name("out.json")).write_text(text)
        ok(run_cli(["lock", "-m", manifest, "-o", manifest.with_name("out.json")], world.env))


# -- the store -----------------------------------------------------------------------------------------
