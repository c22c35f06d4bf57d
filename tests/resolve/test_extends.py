"""Lists under `extends`: what a child drops is told, `append:` adds; and every patch is printed by every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.in_process import run_here
from tests.resolve.world import World, component, takes
from tests.support import ok

OLD = "old\n"


OTHER = {"sources": [{"git": "https://example.org/o.git"}], "ref": "1" * 40, "take": takes((".", "o"))}


def patch(name: str) -> str:
    return f"--- a/pkg/{name}\n+++ b/pkg/{name}\n@@ -1 +1 @@\n-old\n+{name}\n"


@pytest.fixture
def chain(world: World) -> World:
    """grand.yaml has a component with two patches and a tree patch; the files for more patches lie there."""
    up = world.upstream({**{f"pkg/{n}": OLD for n in "abcde"}, "more/x": "x\n"})
    for name in "abcde":
        world.write(f"{name}.patch", patch(name))
    world.manifest(
        {"up": component(up, up.id("main"), patches=["./a.patch", "./b.patch"])},
        name="grand",
        tree={"patches": ["./e.patch"]},
        requirements=["ray==2.42.1", "numpy<2"],
    )
    return world


def child(world: World, name: str, parent: str, **body: Any) -> Path:
    return world.write(
        f"{name}.yaml", json.dumps({"extends": f"./{parent}.yaml", "name": name, **body}, indent=1)
    )


def patches(world: World, name: str) -> list[str]:
    return [patch.name for patch in world.lock(name=name).components["up"].patches]


def test_what_a_list_replaces_is_told(chain: World) -> None:
    path = child(chain, "m", "grand", components={"up": {"patches": ["./b.patch", "./c.patch"]}})
    assert patches(chain, "m") == ["b", "c"]
    (at,) = [index for index, line in enumerate(chain.told) if "drops" in line]
    line = 1 + path.read_text().splitlines().index('   "patches": [')
    grand = chain.root / "project/grand.yaml"
    there = 1 + grand.read_text().splitlines().index('    "./a.patch",')
    assert chain.told[at : at + 2] == [
        f"note: {path}:{line}: components.up.patches drops 1 entry of the parent; write "
        "`patches: {append: [...]}` to add to its list instead:",
        f"  ./a.patch ({grand}:{there})",
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tree": {"patches": []}}, "tree.patches drops 1 entry of the parent:\n  ./e.patch"),
        ({"tree": None}, "tree.patches drops 1 entry of the parent:\n  ./e.patch"),
        ({"components": {"up": {"patches": None}}}, "components.up.patches drops 2 entries"),
        ({"components": {"up": {"take": takes(("more", "more"))}}}, "\n  {from: pkg, to: pkg}"),
        ({"requirements": ["ray==2.43.0"]}, "requirements drops 2 entries"),
        ({"components": {"up": {"sources": [{"git": "https://example.org/up.git"}]}}}, "\n  {git: file://"),
        ({"tree": {"patches": ["./e.patch", "./d.patch"]}}, None),
        ({"requirements": {"append": ["torch"]}}, None),
        ({"components": {"up": {"merge": {"append": []}}}, "overrides": {"append": []}}, None),
        ({"components": {"up": None, "other": OTHER}}, "components.up.patches drops 2 entries"),
    ],
)
def test_every_list_of_a_manifest(chain: World, body: dict[str, Any], said: str | None) -> None:
    path = child(chain, "m", "grand", **body)
    (told,) = load_manifest(str(path)).dropped or ("",)
    assert (said in told) if said is not None else not told


def test_append_adds_through_several_levels(chain: World) -> None:
    child(chain, "parent", "grand", components={"up": {"patches": {"append": ["./c.patch"]}}})
    (chain.root / "project/below").mkdir()
    chain.write("below/own.patch", patch("d"))
    body = {
        "components": {"up": {"patches": {"append": ["./own.patch"]}}},
        "tree": {"patches": {"append": []}},
    }
    path = chain.write("below/m.yaml", json.dumps({"extends": "../parent.yaml", "name": "m", **body}))
    loaded = load_manifest(str(path))
    named = [entry.path for entry in loaded.manifest.components["up"].patches]
    assert named == ["../a.patch", "../b.patch", "../c.patch", "./own.patch"]
    assert [entry.path for entry in loaded.manifest.tree.patches] == ["../e.patch"]
    assert loaded.dropped == ()
    assert loaded.where("components", "up", "patches", 0).startswith(str(chain.root / "project/grand.yaml"))
    assert loaded.where("components", "up", "patches", 3) == f"{path}:1"
    made, _ = chain.lock(name="below/m"), None
    assert [p.name for p in made.components["up"].patches] == ["a", "b", "c", "own"]


def test_every_command_prints_every_patch(chain: World) -> None:
    locked = ok(run_here(["lock", "-m", chain.root / "project/grand.yaml"], chain.env, chain.root))
    done = ok(run_here(["setup", "-m", chain.root / "project/grand.yaml", "-w", "w"], chain.env, chain.root))
    status = run_here(["status", "-w", "w"], chain.env, chain.root)
    for out in (locked.stdout, done.stdout, status.stdout):
        assert [line.strip() for line in out.splitlines() if " patch " in line] == [
            "patch a: 1 hunk",
            "patch b: 1 hunk",
            "patch e: 1 hunk",
        ]
    pin = chain.repo().id("main")
    assert (
        f"  up               {pin[:12]}" in done.stdout and f"  up               {pin[:12]}" in status.stdout
    )
