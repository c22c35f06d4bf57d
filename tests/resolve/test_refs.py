"""Names of commits: what they resolve to, what people are told of them, and what happens when they move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.common.errors import LockError, SourceError, UsageError
from npu_rl.stack.resolve import relock
from tests.resolve.world import World, component, pull, request
from tests.support import serve


@pytest.mark.parametrize("depth", [1, 2])
def test_annotated_tags_are_peeled_to_their_commit(world: World, depth: int) -> None:
    up = world.repo()
    commit = up.commit({"pkg/a.py": "one\n"})
    tag = up.tag("v1", annotated=True)
    if depth == 2:
        text = f"object {tag}\ntype tag\ntag v2\ntagger T <t@example.com> 0 +0000\n\nv2\n"
        up.ref("refs/tags/v1", up.git("mktag", input=text.encode()))
    up.commit({"pkg/a.py": "two\n"})
    lock = world.locked({"up": component(up, "refs/tags/v1")})
    assert lock.components["up"].pin == commit
    assert not world.told


def test_a_name_that_is_branch_and_tag_is_told(world: World) -> None:
    up = world.upstream({"pkg/a.py": "tag\n"})
    up.tag("r0.8", annotated=True)
    branch = up.commit({"pkg/a.py": "branch\n"}, on="r0.8", parents=["main"])
    lock = world.locked({"up": component(up, "refs/tags/r0.8")})
    assert world.compose(lock).code["pkg/a.py"] == b"tag\n"
    assert world.told == [
        f"up: r0.8 is both a branch and a tag; refs/heads/r0.8 is a different commit, {branch[:12]}"
    ]


def test_branch_and_tag_of_one_commit(world: World) -> None:
    up = world.upstream({"pkg/a.py": "same\n"})
    up.branch("both")
    up.tag("both")
    world.locked({"up": component(up, "refs/tags/both")})
    assert world.told == ["up: both is both a branch and a tag; refs/heads/both is the same commit"]


def test_a_moving_branch_is_told(world: World) -> None:
    up = world.repo()
    oid = up.commit({"pkg/a.py": "one\n"})
    assert world.locked({"up": component(up)}).components["up"].pin == oid
    assert world.told == [f"up: refs/heads/main is a branch, which can move; locked at {oid[:12]}"]


def test_a_branch_named_like_a_commit_id_fools_nobody(world: World) -> None:
    up = world.repo()
    wanted = up.commit({"pkg/a.py": "wanted\n"})
    trap = up.commit({"pkg/a.py": "trap\n"}, on="trap", parents=["main"])
    up.git("update-ref", f"refs/heads/{wanted}", trap)
    up.git("update-ref", f"refs/tags/{wanted}", trap)
    with serve(up.path.parent) as daemon:
        entry = component(up, wanted, sources=[{"git": daemon.url("up.git")}])
        lock = world.locked({"up": entry})
        assert lock.components["up"].pin == wanted
        assert world.compose(lock).code["pkg/a.py"] == b"wanted\n"
        assert world.locked({"up": {**entry, "ref": f"refs/heads/{wanted}"}}).components["up"].pin == trap


def test_a_commit_id_that_no_source_has(world: World) -> None:
    up = world.upstream({"pkg/a.py": "one\n"})
    absent = "1234567890" * 4
    message = world.refused({"up": component(up, absent)}, SourceError)
    assert "No source has the commits of up" in message
    assert absent[:12] in message and up.url in message and "not our ref" in message


@pytest.mark.parametrize("kind", ["tree", "tag"])
def test_an_id_of_something_else_than_a_commit(world: World, kind: str) -> None:
    up = world.repo()
    commit = up.commit({"pkg/a.py": "one\n"})
    tag = up.tag("v1", annotated=True)
    wrong = tag if kind == "tag" else up.tree()
    message = world.refused({"up": component(up, wrong)})
    assert f"{wrong} of up is a {kind}, not a commit" in message
    assert (commit in message) == (kind == "tag")


def test_a_tag_of_a_tree_is_no_pin(world: World) -> None:
    up = world.upstream({"pkg/a.py": "one\n"})
    up.ref("refs/tags/odd", up.tree())
    assert "is a tree, not a commit" in world.refused({"up": component(up, "refs/tags/odd")})


def test_a_ref_that_is_not_there(world: World) -> None:
    up = world.upstream({"pkg/a.py": "one\n"})
    mirror = up.copy(world.root / "upstream" / "mirror.git")
    sources = [{"git": up.url}, {"git": mirror.url}]
    message = world.refused({"up": component(up, "refs/tags/v9", sources=sources)}, SourceError)
    assert "The refs of up can't be resolved" in message
    assert f"{up.url} does not have refs/tags/v9" in message
    assert f"{mirror.url} does not have refs/tags/v9" in message


def test_refs_come_from_the_first_mirror_that_has_them(world: World) -> None:
    up = world.repo()
    oid = up.commit({"pkg/a.py": "one\n"})
    missing = f"file://{world.root}/nowhere.git"
    lock = world.locked({"up": component(up, sources=[{"git": missing}, {"git": up.url}])})
    assert lock.components["up"].pin == oid
    world.told.clear()
    assert world.check() == lock  # the same mirror is missing for it
    assert not world.told


def test_a_request_that_moved_after_the_lock(world: World) -> None:
    up = world.repo()
    other = world.upstream({"other/o.py": "one\n"}, name="other")
    up.commit({"pkg/a.py": "base\n"})
    locked = pull(up, 5, {"pkg/a.py": "as locked\n"})
    with serve(up.path.parent) as daemon:  # a stock server, not the obliging one of file://
        entry = component(up, merge=[request(5)], sources=[{"git": daemon.url("up.git")}])
        entries = {
            "up": entry,
            "other": component(other, take=[{"from": "other", "to": "other"}]),
        }
        lock = world.locked(entries)
        moved = pull(up, 5, {"pkg/a.py": "force-pushed\n"})
        other.commit({"other/o.py": "two\n"})
        assert world.compose(lock).code["pkg/a.py"] == b"as locked\n"
        world.told.clear()
        assert world.check() == lock
        assert (
            f"note: up: refs/pull/5/head moved from {locked[:12]} to {moved[:12]} since the lock"
            in world.told
        )
        new = world.lock("up")
        made = world.compose(new)
    assert new.components["up"].merges[0].head == moved
    assert new.components["other"] == lock.components["other"]
    assert (made.code["pkg/a.py"], made.code["other/o.py"]) == (b"force-pushed\n", b"one\n")


def test_a_request_that_is_gone(world: World) -> None:
    up = world.upstream({"pkg/a.py": "base\n"})
    pull(up, 5, {"pkg/a.py": "as locked\n"})
    lock = world.locked({"up": component(up, merge=[request(5)])})
    up.git("update-ref", "-d", "refs/pull/5/head")
    world.told.clear()
    assert world.check() == lock
    assert (
        "note: up: refs/pull/5/head no longer exists upstream; the lock still names its commit" in world.told
    )
    assert world.compose(lock).code["pkg/a.py"] == b"as locked\n"
    with pytest.raises(SourceError, match="can't be resolved"):
        world.lock("up")


def test_a_kept_component_keeps_its_ids_when_the_manifest_adds_a_request(world: World) -> None:
    up = world.repo()
    pin = up.commit({"pkg/a.py": "base\n"})
    pull(up, 5, {"pkg/b.py": "five\n"})
    world.locked({"up": component(up)})
    up.commit({"pkg/a.py": "moved on\n"})
    world.manifest({"up": component(up, merge=[request(5)]), "new": component(up, take=NEW)})
    lock = world.lock("new")
    assert lock.components["up"].pin == pin
    assert world.compose(lock).code["pkg/b.py"] == b"five\n"
    assert lock.components["new"].pin == up.id("main")


NEW = [{"from": "pkg", "to": "new"}]


def test_update_of_a_component_that_is_not_there(world: World) -> None:
    up = world.upstream({"pkg/a.py": "base\n"})
    world.locked({"up": component(up)})
    with pytest.raises(UsageError, match="Unknown component of m: upp"):
        world.lock("upp")


@pytest.mark.parametrize("state", ["absent", "damaged"])
def test_update_needs_a_good_lock(world: World, state: str) -> None:
    up = world.upstream({"pkg/a.py": "base\n"})
    world.manifest({"up": component(up)})
    if state == "damaged":
        world.write("m.lock.json", json.dumps({"lock_format": 99}))
    with pytest.raises(LockError, match="no lock" if state == "absent" else "has format 99"):
        world.lock("up")


def test_offline_asks_nobody(world: World) -> None:
    up = world.repo()
    oid = up.commit({"pkg/a.py": "base\n"})
    world.locked({"up": component(up, oid)})
    with serve(Path(world.root)) as daemon:
        world.manifest({"up": component(up, oid, sources=[{"git": daemon.url("upstream/up.git")}])})
        with pytest.raises(SourceError, match="--offline does not allow"):
            relock.check(world.offline())
        with pytest.raises(SourceError, match="--offline does not allow"):
            relock.write(world.offline(), [])
        assert daemon.requests == 0
