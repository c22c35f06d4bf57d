"""Component trees laid into one code tree: folders shared, paths not, and a history that tells the story."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import ComposeError, ManifestError
from tests.resolve.world import PATCH, Composition, World, component, pull, request, takes
from tests.support import Files, ok, run_program


def code(made: Composition) -> dict[str, str]:
    """The code tree without the runtime."""
    return {p: c.decode() for p, c in made.code.items() if not p.startswith("npu_rl_runtime/")}


def test_two_components_share_a_folder(world: World) -> None:
    one = world.upstream({"src/a/x.py": "1\n", "src/a/deep/p.py": "p\n"}, name="one")
    two = world.upstream({"y.py": "2\n", "deep/q.py": "q\n", "top.py": "t\n"}, name="two")
    lock = world.locked(
        {
            "one": component(one, take=takes(("src", "lib"))),
            "two": component(two, take=takes((".", "lib/a"), ("top.py", "top.py"))),
        }
    )
    assert code(world.compose(lock)) == {
        "lib/a/x.py": "1\n",
        "lib/a/y.py": "2\n",
        "lib/a/top.py": "t\n",
        "lib/a/deep/p.py": "p\n",
        "lib/a/deep/q.py": "q\n",
        "top.py": "t\n",
    }


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ({"pkg/a.py": "1\n"}, {"pkg/a.py": "2\n"}, "pkg/a.py"),
        ({"pkg/a.py": "same\n"}, {"pkg/a.py": "same\n"}, "pkg/a.py"),
        ({"pkg/a": "file\n"}, {"pkg/a/b.py": "in a folder\n"}, "pkg/a"),
        ({"pkg/a/b.py": "in a folder\n"}, {"pkg/a": "file\n"}, "pkg/a"),
        ({"pkg/d/e/ü x.py": "1\n"}, {"pkg/d/e/ü x.py": "2\n", "pkg/d/ok.py": "3\n"}, "pkg/d/e/ü x.py"),
    ],
)
def test_two_components_take_one_path(world: World, first: Files, second: Files, path: str) -> None:
    entries = {
        "first": component(world.upstream(first, name="1")),
        "second": component(world.upstream(second, name="2")),
    }
    message = world.refused(entries, ComposeError)
    assert "first and second both take" in message
    assert f"both take {path}\n" in message and "but not a file" in message


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("npu_rl_runtime/x.py", "the runtime needs the path npu_rl_runtime/__init__.py"),
        ("up-1.0.dist-info/METADATA", "dist of up needs the path up-1.0.dist-info/METADATA"),
    ],
)
def test_what_npu_rl_writes_is_not_for_components(world: World, path: str, says: str) -> None:
    folder = path.split("/")[0]
    files = {path: "x\n", "npu_rl_runtime/__init__.py": "mine\n"}
    entry = component(
        world.upstream(files, name="1"), take=takes((folder, folder)), dist={"name": "up", "version": "1.0"}
    )
    assert says in world.refused({"up": entry}, ComposeError, runtime=True)


def test_the_runtime_is_laid_unless_it_is_not_wanted(world: World) -> None:
    repo = world.upstream({"pkg/a.py": "1\n"}, name="1")
    with_runtime = world.locked({"up": component(repo)}, runtime=None)
    assert with_runtime.runtime is not None
    made = world.compose(with_runtime)
    laid = {p for p in made.code if p.startswith("npu_rl_runtime/")}
    assert "npu_rl_runtime/__init__.py" in laid
    assert all(p.endswith(".py") for p in laid)
    without = world.locked({"up": component(repo)})
    assert without.runtime is None
    assert set(world.compose(without).code) == {"pkg/a.py"}


def test_the_history_tells_the_story(world: World) -> None:
    repo = world.upstream({"pkg/a.py": "one\ntwo\n"}, name="1")
    pull(repo, 4, {"pkg/b.py": "b\n"}, "Add b")
    world.write("x.patch", PATCH)
    entry = component(repo, merge=[request(4)], patches=["./x.patch"], dist={"name": "up", "version": "1.0"})
    tree = {"patches": [{"path": "./t.patch"}]}
    world.write("t.patch", PATCH.replace("two", "2").replace("+2", "+three"))
    lock = world.locked({"up": entry}, tree=tree, runtime=True)
    made = world.compose(lock)
    subjects = made.git.text("log", "--format=%s", made.commit).splitlines()
    assert subjects == [
        "Apply t to the tree",
        "Lay the runtime",
        "Write dist-info for the copied packages",
        "Apply x to up",
        "Merge refs/pull/4/head into up",
        f"Pin up at {repo.id('main')[:12]}",
    ]
    assert "Add b" in made.log() and f"Pull-Request-Head: {repo.id('refs/pull/4/head')}" in made.log()
    blamed = made.git.text("blame", "-s", made.commit, "--", "pkg/a.py").splitlines()
    assert len({line.split()[0] for line in blamed}) == 2  # line 1 from the pin, line 2 from the tree's patch
    facts = made.git.text("log", "--format=%an %ae %cn %ce %ad %P", "--date=raw", made.commit).splitlines()
    assert all(fact.startswith("npu-rl npu-rl@invalid npu-rl npu-rl@invalid 15778368") for fact in facts)
    assert [len(fact.split()) for fact in facts] == [7, 7, 7, 7, 7, 6]  # linear


def test_patches_to_the_assembled_tree(world: World) -> None:
    """They see every component, the dist-info and the runtime, and have the last word."""
    one = world.upstream({"pkg/a.py": "one\ntwo\n"}, name="one")
    two = world.upstream({"other/b.py": "b\n"}, name="two")
    world.write("t.patch", PATCH + PATCH.replace("pkg/a", "lib/b").replace("-1,2 +1,2", "-1 +1").replace(
        " one\n-two", "-b"
    ) + PATCH.replace("pkg/a.py", "one-1.0.dist-info/INSTALLER").replace("-1,2 +1,2", "-1 +1").replace(
        " one\n-two", "-npu-rl"
    ))  # fmt: skip
    lock = world.locked(
        {
            "one": component(one, dist={"name": "one", "version": "1.0"}),
            "two": component(two, take=takes(("other", "lib"))),
        },
        tree={"patches": [{"path": "./t.patch"}]},
    )
    assert [p.hunks for p in lock.tree_patches] == [3]
    made = world.compose(lock)
    assert made.code["pkg/a.py"] == b"one\n2\n"
    assert made.code["lib/b.py"] == b"2\n" == made.code["one-1.0.dist-info/INSTALLER"]
    assert [(h["component"], h["root"], h["file"]) for h in made.hunks] == [
        ("tree", "code", "pkg/a.py"),
        ("tree", "code", "lib/b.py"),
        ("tree", "code", "one-1.0.dist-info/INSTALLER"),
    ]


# -- dist-info -----------------------------------------------------------------------------------------

DISTS: list[tuple[dict[str, Any], str]] = [
    ({"name": "vllm-ascend", "version": "0.9.1.dev0"}, "vllm_ascend-0.9.1.dev0.dist-info"),
    ({"name": "Zope.Interface", "version": "1!2.0+local.1"}, "zope_interface-1!2.0+local.1.dist-info"),
]


@pytest.mark.parametrize(("dist", "folder"), DISTS)
def test_dist_info_is_found_in_a_clean_interpreter(world: World, dist: dict[str, Any], folder: str) -> None:
    points = {
        "vllm.platform_plugins": {"ascend": "pkg:register"},
        "z.group": {"b": "pkg.m:B", "a": "pkg.m:A"},
    }
    repo = world.upstream({"pkg/__init__.py": "def register():\n    return 'here'\n"}, name="1")
    lock = world.locked({"up": component(repo, dist={**dist, "entry_points": points})})
    made = world.compose(lock)
    assert f"{folder}/METADATA" in made.code
    place = world.root / "laid"
    for path, data in made.code.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
    assert _asked(place, dist["name"]) == [dist["name"], dist["version"], "['ascend']", "here", "['a', 'b']"]


def _asked(place: Path, name: str) -> list[str]:
    program = f"""
import sys
sys.path = [p for p in sys.path if 'site-packages' not in p] + [{str(place)!r}]
from importlib import metadata
print(metadata.metadata({name!r})['Name'])
print(metadata.version({name!r}))
points = metadata.entry_points(group='vllm.platform_plugins')
print([p.name for p in points])
print([p.load()() for p in points][0])
print(sorted(p.name for p in metadata.entry_points(group='z.group')))
"""
    return ok(run_program([sys.executable, "-I", "-B", "-c", program])).stdout.splitlines()


# -- a lock of another machine -------------------------------------------------------------------------


def test_a_lock_whose_trees_are_not_what_composing_gives(world: World) -> None:
    """A digest that fits does not help: every tree is made anew and compared."""
    repo = world.upstream({"pkg/a.py": "1\n"}, name="1")
    lock = world.locked({"up": component(repo)}, runtime=True)
    wrong = "0" * 40
    with pytest.raises(ComposeError, match="The composed tree does not match the lock"):
        world.compose(replace(lock, tree=wrong))
    with pytest.raises(ComposeError, match="The composed tree does not match the lock"):
        world.compose(replace(lock, commit=wrong))
    with pytest.raises(ComposeError, match="up after its patches does not match the lock"):
        world.compose(replace(lock, components={"up": replace(lock.components["up"], result=wrong)}))
    with pytest.raises(ComposeError, match="another version of npu_rl_runtime"):
        world.compose(replace(lock, runtime=wrong))
    store = world.empty_store()
    with pytest.raises(ComposeError):
        world.compose(replace(lock, tree=wrong), store)
    delivered = [u.name for u in store.units.iterdir()]
    assert len(delivered) == 2  # the component and the runtime; nothing composed
    assert not list(store.temporary.iterdir())


@pytest.mark.parametrize("name", ["tree", "npu_rl_runtime"])
def test_names_that_reports_need(world: World, name: str) -> None:
    repo = world.upstream({"pkg/a.py": "1\n"}, name="1")
    assert "is a reserved name" in world.refused({name: component(repo)}, ManifestError)
