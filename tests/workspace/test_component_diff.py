"""`npu-rl diff` and the paths of a component: what it prints becomes a patch that locks and gives the same tree."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.resolve.world import World, component, takes, world
from tests.support import assert_told, ok, run_cli

__all__ = ["world"]

NAMES = ("pkg/a.py", "pkg/two words.py", "pkg/größe.py", 'pkg/"quoted".py')


@pytest.fixture
def laid(world: World) -> World:
    """A workspace `w` of `up`, laid into lib/ and tools/, and `other`, laid into the top folder."""
    up, other = world.repo(), world.repo("other")
    up.commit({**dict.fromkeys(NAMES, "old\n"), "scripts/convert.py": "one\ntwo\n", "scripts/gone.py": "x\n"})
    other.commit({"top/b.py": "b\n", "top/lib/c.py": "c\n"})
    entries = {
        "up": component(up, up.id("main"), take=takes(("pkg", "lib"), ("scripts", "tools"))),
        "other": component(other, other.id("main"), take=takes(("top", "."))),
    }
    world.manifest(entries)
    lay(world)
    return world


def run(world: World, *args: str) -> subprocess.CompletedProcess[str]:
    return run_cli(args, world.env, world.root)


def lay(world: World, workspace: str = "w") -> None:
    ok(run(world, "lock", "-m", "project/m.yaml"))
    ok(run(world, "setup", "-m", "project/m.yaml", "-w", workspace))


def patched(world: World, name: str, text: str) -> None:
    """Add a patch to a component, or to the tree, of the manifest."""
    world.write("mine.patch", text)
    place = world.root / "project/m.yaml"
    body = json.loads(place.read_text())
    holder = body.setdefault("tree", {}) if name == "tree" else body["components"][name]
    holder["patches"] = ["./mine.patch"]
    place.write_text(json.dumps(body, indent=1))


def edit(world: World) -> Path:
    code = world.root / "w/code"
    for name in NAMES:
        (code / name.replace("pkg/", "lib/")).write_text(f"--- a/{name}\n+++ b/new\ndiff --git a/x b/x\n")
    (code / "tools/convert.py").write_text("one\n2\n")
    (code / "tools/convert.py").chmod(0o755)
    (code / "tools/gone.py").unlink()
    (code / "lib/new.py").write_text("n")
    return code


def test_a_hunk_between_twins_stays_where_it_was_made(world: World) -> None:
    """Two sections have the same lines, and a removed line looks like a file's header."""
    sections = {name: {f"k{n}": n for n in range(12)} for name in ("actor", "ref")}
    up = world.repo()
    up.commit({"pkg/ppo.yaml": yaml.safe_dump({"all": sections}), "pkg/a.py": "x = 1\n-- a/pkg/b.yaml\n"})
    world.manifest({"up": component(up, up.id("main"), take=takes(("pkg", "lib")))})
    lay(world)
    place = world.root / "w/code/lib/ppo.yaml"
    before, _, after = place.read_text().rpartition("k6: 6")
    place.write_text(f"{before}k6: 7{after}")
    (world.root / "w/code/lib/a.py").write_text("x = 1\n")
    (world.root / "w/code/lib/new.yaml").write_text("a: 1\n")
    done = ok(run(world, "diff", "-w", "w", "--component", "up"))
    assert "--- a/pkg/ppo.yaml" in done.stdout and "\n--- a/pkg/b.yaml\n" in done.stdout
    edited = place.read_bytes()
    patched(world, "up", done.stdout)
    lay(world, "w2")
    assert (world.root / "w2/code/lib/ppo.yaml").read_bytes() == edited


def contents(code: Path) -> dict[str, tuple[bool, bytes]]:
    files = [p for p in code.rglob("*") if p.is_file() and ".git" not in p.parts]
    return {str(p.relative_to(code)): (bool(p.stat().st_mode & 0o100), p.read_bytes()) for p in files}


def test_an_edit_becomes_a_patch_of_its_component(laid: World) -> None:
    code = edit(laid)
    (code / "b.py").write_text("B\n")
    wanted = contents(code)
    mine = ok(run(laid, "diff", "-w", "w", "--component", "up"))
    assert "--- a/scripts/convert.py\n+++ b/scripts/convert.py\n" in mine.stdout
    assert "tools/" not in mine.stdout and "b.py b/b.py" not in mine.stdout
    assert "--- a/pkg/two words.py\t\n" in mine.stdout
    theirs = run(laid, "diff", "-w", "w", "--component", "other")
    assert theirs.stdout.startswith("diff --git a/top/b.py b/top/b.py\n")
    patched(laid, "up", mine.stdout)
    (code / "b.py").write_text("b\n")
    lay(laid)  # no local edit is in the way: the lock has them all
    assert contents(code) == {**wanted, "b.py": (False, b"b\n")}


def test_the_whole_diff_is_a_patch_of_the_tree_and_names_its_origins(laid: World) -> None:
    code = edit(laid)
    wanted = contents(code)
    whole = run(laid, "diff", "-w", "w")
    head, _, _ = whole.stdout.partition("diff --git")
    assert head.splitlines() == [
        "# Paths are those of the code tree: list this patch under `tree: {patches: [...]}` of the manifest.",
        "# For a patch with the paths of one component: npu-rl diff --component NAME",
        '# lib/"quoted".py: up, pkg/"quoted".py',
        "# lib/a.py: up, pkg/a.py",
        "# lib/größe.py: up, pkg/größe.py",
        "# lib/new.py: up, pkg/new.py",
        "# lib/two words.py: up, pkg/two words.py",
        "# tools/convert.py: up, scripts/convert.py",
        "# tools/gone.py: up, scripts/gone.py",
    ]
    patched(laid, "tree", whole.stdout)
    lay(laid)
    assert contents(code) == wanted


def test_the_same_patch_on_a_component_is_refused_with_the_way_out(laid: World) -> None:
    done = run(laid, "diff", "-w", "w", "--component", "other")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_told(run(laid, "diff", "-w", "w", "--component", "upp"), "Name one of these: up, other", code=2)
    edit(laid)
    patched(laid, "up", run(laid, "diff", "-w", "w").stdout)
    refused = run(laid, "lock", "-m", "project/m.yaml")
    assert_told(refused, "up, patch mine", "tools/convert.py", "under `tree: {patches: [...]}`")
