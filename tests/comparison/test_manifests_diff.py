"""`npu-rl manifests diff`: every kind of difference between two locks, and the commits between pins by git itself."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import run_here
from tests.resolve.world import PATCH, World, component, pull, request, takes
from tests.support import Repo, assert_told, ok

FILES = {"pkg/a.py": "one\ntwo\n", "pkg/b.py": "b\n", "docs/x.md": "x\n"}


def run(world: World, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return run_here(("manifests", "diff", *args), world.env, world.root / "project")


def compared(world: World, *args: str | Path) -> Any:
    return json.loads(ok(run(world, *args, "--json")).stdout)


def values(found: dict[str, Any], of: str) -> list[tuple[Any, ...]]:
    return [
        tuple(one[key] for key in ("name", "before", "after")) for one in found["values"] if one["of"] == of
    ]


@pytest.fixture
def up(world: World) -> Repo:
    return world.upstream(FILES, "first")


def test_every_kind_of_difference(world: World, up: Repo) -> None:
    first = up.id("main")
    head = pull(up, 1, {"pkg/c.py": "c\n"})
    up.commit({"pkg/b.py": "b2\n"}, "touch b")
    up.commit({"docs/x.md": "y\n"}, "docs only")
    second = up.commit({"pkg/b.py": "b3\n"}, "touch b again")
    extra = world.upstream({"extra/e.py": "e\n"}, name="extra")
    for folder in ("old", "new"):
        world.write(
            f"{folder}/series", "0001-two.patch\n0002-rest.patch\n" if folder == "old" else "0003-two.patch\n"
        )
    world.write("old/0001-two.patch", PATCH)
    world.write(
        "old/0002-rest.patch",
        PATCH.replace("pkg/a.py", "pkg/b.py").replace(" one\n-two\n+2", "-b\n+2").replace("1,2 +1,2", "1 +1"),
    )
    world.write("new/0003-two.patch", PATCH.replace("+2", "+zwei"))
    token = "hunter2hunter2"
    world.manifest(
        {"up": component(up, ref=first, patches=["./old"]), "gone": component(extra, take=takes(("extra", "extra")))},
        "a", requirements=["numpy==1.0", "left"], env={"API_TOKEN": token, "KEPT": "1"},
        host={"torch": "2.5"},
    )  # fmt: skip
    world.manifest(
        {
            "up": component(
                up, ref=second, patches=["./new"], merge=[request(1, "pick")],
                take=takes(("pkg", "pkg"), ("docs", "docs")), dist={"name": "up", "version": "1"},
            )
        },
        "b", requirements=["numpy==2.0", "right"], env={"API_TOKEN": f"{token}3", "KEPT": "1"},
        host={"cann": "8"}, device="npu",
    )  # fmt: skip
    world.lock(name="a"), world.lock(name="b")
    found = compared(world, "a.yaml", "b.lock.json", "--commits")
    one, gone = found["pins"]
    assert (gone["name"], gone["after"]) == ("gone", None) and "gone" not in found["commits"]
    assert (one["name"], one["before"], one["after"]) == ("up", first, second)
    subjects = [commit["subject"] for commit in found["commits"]["up"]["touching"]]
    assert (found["commits"]["up"]["count"], found["commits"]["up"]["gone"]) == (3, 0)
    assert subjects == ["touch b again", "docs only", "touch b"]  # docs are taken now
    texts = [hashlib.sha256((world.root / "project" / name).read_bytes()).hexdigest()[:12] for name in (
        "old/0001-two.patch", "new/0003-two.patch", "old/0002-rest.patch")]  # fmt: skip
    assert values(found, "up") == [
        ("take docs", None, "to docs"),
        ("merge refs/pull/1/head", None, f"pick at {head}"),
        ("patch two", f"0001-two {texts[0]}", f"0003-two {texts[1]}"),
        ("dist", None, "up 1"),
        ("patch rest", f"0002-rest {texts[2]}", None),
    ]
    assert sorted(values(found, "requirements")) == [
        ("left", "left", None), ("numpy", "numpy==1.0", "numpy==2.0"), ("right", None, "right"),
    ]  # fmt: skip
    assert values(found, "env") == [("API_TOKEN", "***", "***")]
    assert sorted(values(found, "host")) == [("cann", None, "8"), ("torch", "2.5", None)]
    assert values(found, "stack") == [("device", "cpu", "npu")]
    done = ok(run(world, "a.yaml", "b.yaml"))
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["up", first[:12], second[:12], "3"] in rows
    assert ["gone", world.repo("extra").id("main")[:12], "main", "removed"] in rows
    assert done.stdout.isascii() and "hunter" not in done.stdout
    assert done.stdout.endswith("\n2 of 2 components with another pin, 12 other differences\n")


def test_the_same_stack_in_another_folder_has_no_difference(world: World, up: Repo) -> None:
    world.write("p/series", "0001-two.patch\n")
    world.write("p/0001-two.patch", PATCH)
    world.write("q/0001-two.patch", PATCH)
    world.manifest({"up": component(up, patches=["./p"])}, "a")
    world.manifest({"up": component(up, patches=["./q/0001-two.patch"])}, "b")
    world.lock(name="a"), world.lock(name="b")
    found = compared(world, "a.yaml", "b.yaml", "--offline")
    assert found["pins"] == found["values"] == []
    assert ok(run(world, "a.yaml", "b.yaml")).stdout.endswith("\nno difference\n")


def test_a_lock_is_needed_and_one_older_than_its_manifest_is_noted(world: World, up: Repo) -> None:
    world.manifest({"up": component(up)}, "a")
    world.manifest({"up": component(up)}, "b")
    world.lock(name="a")
    assert_told(run(world, "a.yaml", "b.yaml"), "This manifest has no lock", "npu-rl lock --manifest")
    world.lock(name="b")
    assert "has changed since its lock" not in ok(run(world, "a.yaml", "b.yaml")).stderr
    world.manifest({"up": component(up, ref="refs/tags/v2")}, "a")
    assert "a.yaml has changed since its lock" in ok(run(world, "a.yaml", "b.yaml")).stderr
    world.write("b.lock.json", '{"lock_format": 1, "manifest": ')
    assert_told(run(world, "a.yaml", "b.lock.json"), "The lock is not valid JSON", "b.lock.json")
    assert_told(run(world, "a.yaml", "none.yaml"), "none.yaml")


def test_commits_beside_a_merge_are_those_of_gits_own_log(world: World, up: Repo) -> None:
    """What is before the branches parted is not fetched with its trees, and is not listed."""
    start = up.commit({"pkg/a.py": "0\n"}, "before")
    side = up.commit({"pkg/b.py": "1\n"}, "side", on="side", parents=[start])
    main = up.commit({"docs/x.md": "2\n"}, "docs", parents=[start])
    up.commit({"pkg/a.py": "3\n"}, "merge", parents=[main, side])
    last = up.commit({"pkg/a.py": "4\n"}, "after")
    for name, pin in (("a", main), ("b", last)):
        world.manifest({"up": component(up, ref=pin)}, name)
        world.lock(name=name)
    commits = compared(world, "a.yaml", "b.yaml", "--commits")["commits"]["up"]
    own = up.git("log", "--format=%H %s", f"{main}..{last}", "--", "pkg").splitlines()
    assert [f"{one['id']} {one['subject']}" for one in commits["touching"]] == own
    assert commits["count"] == 3 and "before" not in str(commits["touching"])
