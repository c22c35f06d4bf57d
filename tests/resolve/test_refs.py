"""Names of commits: what they resolve to, what people are told of them, and what happens when they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.resolve import relock
from npu_rl.stack.resolve.refs import resolve
from npu_rl.stack.sources.git_remote import Network
from tests.resolve.world import World, component, pull, request
from tests.support import Repo, serve

NETWORK = Network(retries=0)


@dataclass
class Refs:
    """Two repositories of one commit, and the resolution of refs by their URLs."""

    up: Repo
    fork: Repo
    scratch: Git
    told: list[str] = field(default_factory=list)

    def __call__(self, *refs: str, urls: Sequence[str] = ()) -> list[str]:
        found = resolve(self.scratch, urls or [self.up.url], refs, NETWORK, "up", self.told.append)
        return [found[ref] for ref in refs]


@pytest.fixture
def refs(tmp_path: Path) -> Refs:
    init_bare(tmp_path / "scratch")
    up = Repo(tmp_path / "up.git")
    up.commit({"a": "one\n"})
    return Refs(up, up.copy(tmp_path / "fork.git"), Git(tmp_path / "scratch"))


def test_annotated_tags_are_peeled_to_their_commit(refs: Refs) -> None:
    tag = refs.up.tag("v1", annotated=True)
    text = f"object {tag}\ntype tag\ntag v2\ntagger T <t@example.com> 0 +0000\n\nv2\n"
    refs.up.ref("refs/tags/v2", refs.up.git("mktag", input=text.encode()))
    assert refs("refs/tags/v1", "refs/tags/v2") == [refs.up.id("main")] * 2
    assert refs.told == []


def test_names_that_move_or_are_ambiguous_are_noted(refs: Refs) -> None:
    first = refs.up.id("main")
    refs.up.tag("r0.8", annotated=True)
    refs.up.tag("main")
    branch = refs.up.commit({"a": "branch\n"}, on="r0.8", parents=["main"])
    assert refs("refs/tags/r0.8", "refs/heads/main") == [first, first]
    assert refs.told == [
        f"up: r0.8 is both a branch and a tag; refs/heads/r0.8 is a different commit, {branch[:12]}",
        "up: main is both a branch and a tag; refs/tags/main is the same commit",
        f"up: refs/heads/main is a branch, which can move; locked at {first[:12]}",
    ]


def test_the_first_mirror_that_has_all_refs(refs: Refs) -> None:
    nowhere, ref = f"file://{refs.up.path}/nowhere", "refs/pull/1/head"
    with pytest.raises(SourceError, match="The refs of up can't be resolved") as error:
        refs(ref, urls=[refs.up.url, refs.fork.url])
    assert error.value.why == "\n".join(f"{url} does not have {ref}" for url in (refs.up.url, refs.fork.url))
    refs.fork.pull(1, "main")
    assert refs(ref, urls=[nowhere, refs.up.url, refs.fork.url]) == [refs.up.id("main")]


def test_a_tag_is_the_same_commit_in_every_source(refs: Refs) -> None:
    tag, nowhere = "refs/tags/v1", f"file://{refs.up.path}/nowhere"
    first = refs.up.id("main")
    refs.up.tag("v1", annotated=True)
    assert refs(tag, urls=[nowhere, refs.up.url, refs.fork.url]) == [first]
    unread, lacking = refs.told
    assert unread.startswith(f"note: up: the tags of {nowhere} could not be compared: ")
    assert lacking == f"note: up: {refs.fork.url} does not have {tag}"
    refs.fork.tag("v1")
    refs.told.clear()
    assert (refs(tag, urls=[refs.up.url, refs.fork.url]), refs.told) == ([first], [])
    other = refs.fork.commit({"a": "evil\n"})
    refs.fork.ref(tag, other)
    with pytest.raises(SourceError, match="refs/tags/v1 of up is a different commit") as error:
        refs(tag, urls=[refs.up.url, refs.fork.url])
    assert error.value.why == f"{refs.up.url} has {first},\n{refs.fork.url} has {other}."


# -- the lock --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", ["tree", "tag"])
def test_an_id_of_something_else_than_a_commit(world: World, kind: str) -> None:
    up = world.repo()
    commit = up.commit({"pkg/a.py": "one\n"})
    tag = up.tag("v1", annotated=True)
    wrong = tag if kind == "tag" else up.tree()
    message = world.refused({"up": component(up, wrong)})
    assert f"{wrong} of up is a {kind}, not a commit" in message
    assert (commit in message) == (kind == "tag")


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
