"""`npu-rl manifests diff`: every kind of difference, the commits between pins by git itself, and what has no lock."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_rl.stack.comparison.commits_between import _depth, _graph, _touching
from npu_rl.stack.git.command import Git
from tests.in_process import run_here
from tests.resolve.world import PATCH, World, component, pull, request, takes
from tests.support import Repo, assert_told, ok

FILES = {"pkg/a.py": "one\ntwo\n", "pkg/b.py": "b\n", "docs/x.md": "x\n"}


def run(world: World, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return run_here(("manifests", "diff", *args), world.env, world.root / "project")


def compared(world: World, *args: str | Path) -> Any:
    return json.loads(ok(run(world, *args, "--json")).stdout)


def keys(found: dict[str, Any], name: str, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(one[field] for field in fields) for one in found[name]]


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
    one, gone = found["components"]
    assert not found["same"] and (gone["name"], gone["state"]) == ("gone", "removed")
    assert (one["pin"]["from"], one["pin"]["to"]) == (first, second)
    subjects = [commit["subject"] for commit in one["commits"]["touching"]]
    assert (one["commits"]["count"], one["commits"]["gone"]) == (3, 0)
    assert subjects == ["touch b again", "docs only", "touch b"]  # docs are taken now
    assert keys(one, "takes", "state", "to") == [("added", "docs -> docs")]
    assert keys(one, "merges", "name", "to") == [("refs/pull/1/head", f"pick at {head}")]
    assert keys(one, "patches", "name", "state", "why") == [
        ("0003-two", "changed", "was 0001-two; another text"),
        ("0002-rest", "removed", ""),
    ]
    assert keys(one, "others", "name", "to") == [("dist", "up 1")]
    assert keys(found, "requirements", "name", "state") == [
        ("numpy", "changed"), ("left", "removed"), ("right", "added"),
    ]  # fmt: skip
    assert keys(found, "env", "name", "from", "to") == [("API_TOKEN", "***", "***")]
    assert keys(found, "host", "name", "from", "to") == [("torch", "2.5", None), ("cann", None, "8")]
    assert keys(found, "stack", "name", "to") == [("device", "npu")]
    done = ok(run(world, "a.yaml", "b.yaml"))
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["up", first[:12], second[:12], "3"] in rows and [
        "gone",
        world.repo("extra").id("main")[:12],
        "main",
        "removed",
    ] in rows
    assert done.stdout.isascii() and "hunter" not in done.stdout
    assert done.stdout.endswith(
        "1 component changed, 1 component removed, 1 patch removed, 1 patch changed\n"
    )


def test_the_same_stack_in_another_folder_has_no_difference(world: World, up: Repo) -> None:
    world.write("p/series", "0001-two.patch\n")
    world.write("p/0001-two.patch", PATCH)
    world.write("q/0001-two.patch", PATCH)
    world.manifest({"up": component(up, patches=["./p"])}, "a")
    world.manifest({"up": component(up, patches=["./q/0001-two.patch"])}, "b")
    world.lock(name="a"), world.lock(name="b")
    found = compared(world, "a.yaml", "b.yaml", "--offline")
    assert found["same"] and found["components"][0]["state"] == "same"
    assert ok(run(world, "a.yaml", "b.yaml")).stdout.endswith("\nno difference\n")


def test_offline_nothing_is_counted(world: World, up: Repo) -> None:
    world.manifest({"up": component(up, ref=up.id("main"))}, "a")
    world.manifest({"up": component(up, ref=up.commit({"pkg/a.py": "1\n"}))}, "b")
    world.lock(name="a"), world.lock(name="b")
    commits = compared(world, "a.yaml", "b.yaml", "--offline", "--commits")["components"][0]["commits"]
    assert commits["count"] is None and commits["touching"] is None
    assert "not counted: --offline" in ok(run(world, "a.yaml", "b.yaml", "--offline")).stdout


def test_a_history_that_parted_is_counted_on_both_sides(world: World, up: Repo) -> None:
    start = up.id("main")
    left = up.commit({"pkg/a.py": "left\n"}, on="left", parents=[start])
    up.commit({"pkg/a.py": "1\n"}, on="right", parents=[start])
    right = up.commit({"docs/x.md": "2\n"}, on="right")
    for name, pin in (("a", left), ("b", right)):
        world.manifest({"up": component(up, ref=pin)}, name)
    commits = compared(world, "a.yaml", "b.yaml", "--commits")["components"][0]["commits"]
    assert (commits["count"], commits["gone"], len(commits["touching"])) == (2, 1, 1)


def test_a_pin_that_no_source_has_is_not_counted(world: World, up: Repo) -> None:
    world.manifest({"up": component(up, ref=up.id("main"))}, "a")
    world.manifest({"up": component(up, ref="1" * 40)}, "b")
    commits = compared(world, "a.yaml", "b.yaml")["components"][0]["commits"]
    assert commits["count"] is None and "No source has the commits of up" in commits["why"]


def test_a_manifest_without_a_lock_is_compared_as_written(world: World, up: Repo) -> None:
    world.write("p/series", "0001-two.patch\n")
    world.write("p/0001-two.patch", PATCH)
    world.manifest({"up": component(up, merge=[request(1)])}, "a")
    world.manifest(
        {"up": component(up, ref="refs/tags/v2", patches=["./p"], merge=[request(1, "pick")])}, "b"
    )
    done = ok(run(world, "a.yaml", "b.yaml"))
    for name in ("a", "b"):
        assert f"npu-rl lock --manifest {name}.yaml" in done.stderr
    assert "not counted: a ref is not locked" in done.stdout
    one = compared(world, "a.yaml", "b.yaml")["components"][0]
    assert keys(one, "merges", "from", "to") == [("merge", "pick")]
    assert keys(one, "patches", "name", "state", "to") == [("0001-two", "added", "./p/0001-two.patch")]


def test_one_lock_and_one_manifest_of_the_same_stack(world: World, up: Repo) -> None:
    pull(up, 1, {"pkg/c.py": "c\n"})
    components = {"up": component(up, merge=[request(1)])}
    world.manifest(components, "a")
    world.manifest(components, "b")
    world.lock(name="a")
    assert compared(world, "a.yaml", "b.yaml")["same"]  # what nothing has resolved is no difference
    assert "has changed since its lock" not in ok(run(world, "a.yaml", "b.yaml")).stderr
    world.manifest({"up": component(up)}, "a")
    assert "a.yaml has changed since its lock" in ok(run(world, "a.yaml", "b.yaml")).stderr


def test_what_cannot_be_read_is_named(world: World, up: Repo) -> None:
    world.manifest({"up": component(up)}, "a")
    world.write("b.lock.json", '{"lock_format": 1, "manifest": ')
    assert_told(run(world, "a.yaml", "b.lock.json"), "The lock is not valid JSON", "b.lock.json")
    assert_told(run(world, "a.yaml", "none.yaml"), "none.yaml")
    world.manifest({"up": component(up, patches=["./none.patch"])}, "c")
    assert_told(run(world, "a.yaml", "c.yaml"), "The patch ./none.patch does not exist")


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["pkg/a.py", "pkg/sub/b.py", "docs/x.md"]),
        st.integers(0, 3),
        st.integers(0, 5),  # which commit it follows
        st.booleans(),  # whether it merges the newest one
    ),
    min_size=2,
    max_size=9,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(EDITS, st.data())
def test_commits_are_those_of_gits_own_log(
    tmp_path_factory: pytest.TempPathFactory, edits: Any, data: Any
) -> None:
    repo = Repo(tmp_path_factory.mktemp("graph") / "r.git")
    made = [repo.commit({"pkg/a.py": "0\n"})]
    for number, (path, value, back, merges) in enumerate(edits):
        parent = made[max(0, len(made) - 1 - back)]
        parents = [parent, made[-1]] if merges and parent != made[-1] else [parent]
        made.append(repo.commit({path: f"{value}\n"}, f"n{number}", on=f"b{number}", parents=parents))
    before, after = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
    graph = _graph(Git(repo.path), after, before)
    assert list(graph) == repo.git("rev-list", "--topo-order", after, f"^{before}").split()
    expected = []
    for commit in graph:
        each = [
            repo.git("diff-tree", "-r", "--name-only", parent, commit, "--", "pkg")
            for parent in graph[commit]
        ]
        if all(each) and (each or repo.git("ls-tree", commit, "pkg")):
            expected.append(commit)
    assert _touching(Git(repo.path), graph, ["pkg"]) == expected
    if graph:
        shallow = Repo(tmp_path_factory.mktemp("shallow") / "s.git")
        shallow.git("fetch", "-q", f"--depth={_depth(graph, after)}", repo.url, after)
        assert _touching(Git(shallow.path), graph, ["pkg"]) == expected


def test_a_bundle_is_counted_offline(world: World, up: Repo) -> None:
    first = up.id("main")
    second = up.commit({"pkg/a.py": "1\n"}, "change a")
    bundle = world.root / "project" / "up.bundle"
    up.git("bundle", "create", "-q", str(bundle), "--all")
    for name, pin in (("a", first), ("b", second)):
        world.manifest({"up": component(up, ref=pin, sources=[{"bundle": "./up.bundle"}])}, name)
    commits = compared(world, "a.yaml", "b.yaml", "--offline", "--commits")["components"][0]["commits"]
    assert (commits["count"], [one["subject"] for one in commits["touching"]]) == (1, ["change a"])
