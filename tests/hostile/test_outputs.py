"""What a command writes to: a file that a person named, or a store that somebody damaged."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.stack.store import Store
from tests.hostile.limits import limited_cli
from tests.hostile.test_bounds import small
from tests.resolve.world import World
from tests.support import assert_told, clean_env, ok, run_cli


def a_fifo(place: Path) -> None:
    os.mkfifo(place)


def a_socket(place: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # its address has room for a name, not for a path of the tests
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(place.name)
    os.chdir(here)


def a_link_to_a_fifo(place: Path) -> None:
    os.mkfifo(place.with_name("fifo"))
    place.symlink_to("fifo")


def a_link_to_stdout(place: Path) -> None:
    place.symlink_to("/proc/self/fd/1")  # what /dev/stdout is, and nothing that a fault here could replace


def a_folder(place: Path) -> None:
    place.mkdir()


def a_loop(place: Path) -> None:
    place.symlink_to(place.name)


@pytest.mark.parametrize("make", [a_fifo, a_socket, a_link_to_a_fifo, a_link_to_stdout, a_folder, a_loop])
def test_no_lock_is_written_over_what_is_no_file(
    make: Callable[[Path], None], world: World, tmp_path: Path
) -> None:
    manifest = small(world)
    place = tmp_path / "private" / "out.json"
    place.parent.mkdir()
    make(place)
    before = place.lstat()
    done = run_cli(["lock", "-m", manifest, "--output", place], world.env)
    assert_told(done, "where", code=3 if make is a_loop else 2)
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


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "unit.json as a folder": ("units/*/unit.json", as_folder),
    "a pack as a FIFO": ("units/*/objects/pack/*.pack", as_fifo),
    "a unit as a file": ("units/*", as_file),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_store_heals(what: str, world: World, tmp_path: Path) -> None:
    manifest = small(world)
    assert run_cli(["lock", "-m", manifest], world.env).returncode == 0
    pattern, damage = DAMAGE[what]
    found = sorted(Path(world.env["NPU_RL_STORE"]).glob(pattern))
    assert found
    for path in found:
        damage(path)
    ok(run_cli(["setup", "-m", manifest, "-w", tmp_path / "ws"], world.env))


@pytest.mark.parametrize("damage", [as_folder, as_fifo, lambda p: p.write_bytes(b"other")])
def test_a_kept_file_heals(damage: Callable[[Path], None], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = store.keep_file(b"a patch")
    damage(tmp_path / "store" / "files" / digest)
    assert store.kept_file(digest) is None
    assert store.keep_file(b"a patch") == digest and store.kept_file(digest) == b"a patch"


@pytest.mark.second
def test_too_few_open_files_are_not_taken_for_a_missing_git(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done = limited_cli(["setup", "-m", "quickstart", "-w", tmp_path / "ws"], env, files=20)
    assert_told(done, "Too many open files", "ulimit -n 1024", code=3)
