"""Pull requests merged and picked from real histories, and what a set-up elsewhere makes of the records."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from npu_rl.common.errors import DriftError
from npu_rl.stack.lock.lock_model import Lock, Record
from tests.resolve.world import World, component, pull, request, text
from tests.support import Repo

NUMBERS = list(range(1, 31))
# Base, ours and theirs whose diffs depend on the algorithm; found by random search with git 2.39.
DEPENDS_ON_THE_DIFF = (
    ["def f():", "", "y = 2", "def f():", "}", "x = 1", "}", ""],
    ["else:", "x = 1", "def f():", "def f():", "", "else:", "", "y = 2", "def f():", "}", "x = 1", "}", ""],
    ["def f():", "", "def f():", "}"],
)


ODD = b"pkg/caf\xe9.py".decode("utf-8", "surrogateescape")


def changed(**lines: str) -> str:
    """The numbers 1 to 30, one a line; `l7="seven"` changes line 7."""
    return text([lines.get(f"l{n}", n) for n in NUMBERS])


def merged(up: Repo) -> str:
    """The tree git gives for a merge of request 1 into main."""
    return up.git("merge-tree", "--write-tree", "main", "refs/pull/1/head")


def records(lock: Lock, which: int = 0) -> dict[str, Record]:
    return {r.path: r for r in lock.components["up"].merges[which].records}


def test_a_fast_forward_gives_the_head(world: World) -> None:
    up = world.upstream({"pkg/a.py": "one\n"})
    head = pull(up, 7, {"pkg/a.py": "two\n", "pkg/b.py": "new\n"})
    lock = world.locked({"up": component(up, merge=[request(7)])})
    merge = lock.components["up"].merges[0]
    assert (merge.head, merge.drift, merge.inside, merge.outside) == (
        head,
        0,
        ("pkg/a.py", "pkg/b.py"),
        (),
    )
    assert [c.split(" ", 1)[1] for c in merge.commits] == ["change"]
    assert merge.tree == lock.components["up"].result
    assert not any(r.three_way or r.content for r in merge.records)
    assert world.compose(lock).code["pkg/b.py"] == b"new\n"


def test_edits_of_one_file_on_both_sides_are_recorded_and_replayed(world: World) -> None:
    up = world.repo()
    base = up.commit({"pkg/a.py": changed()})
    pull(up, 1, {"pkg/a.py": changed(l3="theirs")}, at=base)
    up.commit({"pkg/a.py": changed(l25="ours")})
    lock = world.locked({"up": component(up, merge=[request(1)])})
    (record,) = lock.components["up"].merges[0].records
    assert record.three_way == (
        up.tree(base, "pkg/a.py"),
        up.tree("main", "pkg/a.py"),
        up.tree("refs/pull/1/head", "pkg/a.py"),
    )
    blobs = [Path(world.root, name) for name in ("ours", "base", "theirs")]
    for path, revision in zip(blobs, ("main", base, "refs/pull/1/head"), strict=True):
        path.write_text(up.git("cat-file", "blob", up.tree(revision, "pkg/a.py")) + "\n")
    replayed = subprocess.run(["git", "merge-file", "-p", *blobs], capture_output=True, check=True).stdout
    assert replayed.decode() == changed(l3="theirs", l25="ours")
    assert world.compose(lock).code["pkg/a.py"] == replayed


@pytest.mark.parametrize("side", ["theirs", "ours"])
def test_a_rename_on_one_side_meets_an_edit_on_the_other(world: World, side: str) -> None:
    up = world.repo()
    base = up.commit({"pkg/old.py": changed()})
    rename = {"pkg/old.py": None, "pkg/new.py": changed(l30="renamed")}
    edit = {"pkg/old.py": changed(l2="edited")}
    pull(up, 1, rename if side == "theirs" else edit, at=base)
    up.commit(edit if side == "theirs" else rename)
    lock = world.locked({"up": component(up, merge=[request(1)])})
    assert records(lock)["pkg/new.py"].three_way
    assert world.compose(lock).code["pkg/new.py"].decode() == changed(l2="edited", l30="renamed")
    assert "pkg/old.py" not in world.compose(lock).code


def test_a_stacked_request_contains_the_first(world: World) -> None:
    up = world.repo()
    base = up.commit({"pkg/a.py": changed()})
    first = up.commit({"pkg/a.py": changed(l3="first")}, "first", on="one", parents=[base])
    second = up.commit({"pkg/a.py": changed(l3="first", l12="second")}, "second", on="two", parents=[first])
    up.pull(1, first)
    up.pull(2, second)
    up.commit({"pkg/a.py": changed(l25="ours")})
    lock = world.locked({"up": component(up, merge=[request(1), request(2)])})
    one, two = lock.components["up"].merges
    assert two.merge_base == first
    assert [c.split(" ", 1)[1] for c in one.commits + two.commits] == ["first", "second"]
    made = world.compose(lock)  # the blob the first merge made is in no repository
    assert made.code["pkg/a.py"].decode() == changed(l3="first", l12="second", l25="ours")


def moved_base(up: Repo) -> str:
    """A request made on a base that has moved on since the pin; the pin."""
    pin = up.commit({"pkg/a.py": changed(), "pkg/other.py": "old\n"})
    up.commit({"pkg/other.py": "newer\n"}, "base 1")
    up.commit({"pkg/other.py": "newest\n"}, "base 2")
    up.commit({"pkg/a.py": changed(l9="request")}, "the request's own", on="pr", parents=["main"])
    up.pull(3054, "pr")
    return pin


def test_drift_is_refused_picked_around_or_allowed(world: World) -> None:
    up = world.repo()
    pin = moved_base(up)
    message = world.refused({"up": component(up, pin, merge=[request(3054)])}, DriftError)
    assert "would move up by 3 commits, 2 of them from refs/heads/main" in message
    assert "how: pick" in message and "drift: allow" in message
    for more, drift, commits, other in (
        ({"how": "pick"}, 0, 1, b"old\n"),
        ({"drift": "allow"}, 2, 3, b"newest\n"),
    ):
        lock = world.locked({"up": component(up, pin, merge=[request(3054, **more)])})
        merge = lock.components["up"].merges[0]
        assert (merge.drift, len(merge.commits)) == (drift, commits)
        assert merge.commits[-1].endswith(" the request's own")
        made = world.compose(lock)
        assert made.code["pkg/a.py"].decode() == changed(l9="request")
        assert made.code["pkg/other.py"] == other


def test_a_stacked_request_that_is_picked_beside_its_base(world: World) -> None:
    up = world.upstream({"pkg/a.py": changed()})
    first = pull(up, 1, {"pkg/a.py": changed(l20="one")})
    pull(up, 2, {"pkg/a.py": changed(l20="two")}, at=first)
    up.commit({"pkg/c.py": "moved\n"})
    for order in ((1, 2), (2, 1)):
        message = world.refused({"up": component(up, merge=[request(n, "pick") for n in order])})
        assert "refs/pull/2/head contains the commit of refs/pull/1/head" in message
        assert "`base: refs/pull/1/head`" in message
    stacked = [request(1, "pick"), request(2, "pick", "refs/pull/1/head")]
    for merges in (stacked, [request(2, "pick")]):  # what the hint advises
        lock = world.locked({"up": component(up, merge=merges)})
        assert world.compose(lock).code["pkg/a.py"].decode() == changed(l20="two")


def test_two_requests_that_conflict_are_both_named_with_their_lines(world: World) -> None:
    up = world.upstream({"pkg/a.py": changed(), "pkg/b.py": changed()})
    pull(up, 1, {"pkg/a.py": changed(l5="one", l20="one")})
    pull(up, 2, {"pkg/b.py": changed(l20="two")})
    pull(up, 3, {"pkg/a.py": changed(l20="three", l21="three")})
    message = world.refused({"up": component(up, merge=[request(n, "pick") for n in (1, 2, 3)])})
    assert "pkg/a.py, line 20-21: refs/pull/3/head conflicts with refs/pull/1/head" in message
    assert "refs/pull/2/head" not in message
    up.commit({"pkg/a.py": changed(l20="ours"), "pkg/b.py": None})
    message = world.refused({"up": component(up, merge=[request(n, "pick") for n in (1, 3)])})
    assert "refs/pull/1/head has conflicts in 1 file" in message
    assert "refs/pull/1/head conflicts with the pin" in message


def test_requests_that_cannot_be_merged(world: World) -> None:
    """Merged already, of unrelated history, or with two merge bases."""
    up = world.repo()
    root = up.commit({"pkg/a.py": "one\n"})
    left = up.commit({"pkg/l.py": "l\n"}, on="left", parents=[root])
    right = up.commit({"pkg/r.py": "r\n"}, on="right", parents=[root])
    both = {"pkg/l.py": "l\n", "pkg/r.py": "r\n"}
    up.commit(both, on="main", parents=[left, right])
    up.commit(both, on="pr", parents=[right, left])
    up.pull(1, right)
    up.pull(2, up.commit({"pkg/z.py": "z\n"}, on="alien", parents=[]))
    up.pull(3, up.commit({"pkg/n.py": "n\n"}, on="pr"))
    for entry, reason in (
        (request(1), "adds no commits"),
        (request(1, "pick"), "it was merged"),
        (request(2), "no common ancestor"),
        (request(3, base=root), "2 merge bases"),
    ):
        assert reason in world.refused({"up": component(up, merge=[entry])})


def test_what_a_request_changes_elsewhere_is_listed(world: World) -> None:
    up = world.upstream({"pkg/a.py": "one\n", "docs/a.md": "d\n", "tests/t.py": "t\n"})
    head = {"pkg/a.py": "two\n", "docs/a.md": "dd\n", "tests/t.py": None, "tests/ü x.py": "new\n", ODD: "e\n"}
    pull(up, 1, head)
    lock = world.locked({"up": component(up, merge=[request(1)])})
    merge = lock.components["up"].merges[0]
    assert merge.inside == ("pkg/a.py", ODD)
    assert merge.outside == ("docs/a.md", "tests/t.py", "tests/ü x.py")
    assert {r.path for r in merge.records} == {"pkg/a.py", ODD}
    assert world.compose(lock).code[ODD] == b"e\n"


def test_two_sides_that_git_merges_and_merge_file_does_not(world: World) -> None:
    """git merges with the histogram diff, `git merge-file` with Myers': then the lock carries the result."""
    up = world.repo()
    base, ours, theirs = (text(side) for side in DEPENDS_ON_THE_DIFF)
    first = up.commit({"pkg/a.py": base})
    pull(up, 1, {"pkg/a.py": theirs}, at=first)
    up.commit({"pkg/a.py": ours})
    lock = world.locked({"up": component(up, merge=[request(1)])})
    (record,) = lock.components["up"].merges[0].records
    blobs = [Path(world.root, name) for name in ("ours", "base", "theirs")]
    for path, content in zip(blobs, (ours, base, theirs), strict=True):
        path.write_text(content)
    by_file = subprocess.run(["git", "merge-file", "-p", "-q", *blobs], capture_output=True, check=False)
    agrees = by_file.returncode == 0  # it may, with another version of git
    assert (record.content is None, record.three_way is None) == (agrees, not agrees)
    tree = merged(up)
    assert (
        world.compose(lock).code["pkg/a.py"].decode() == up.git("cat-file", "blob", f"{tree}:pkg/a.py") + "\n"
    )


def test_the_whole_repository_may_be_expected(world: World) -> None:
    up = world.repo()
    base = up.commit({"pkg/a.py": changed(), "docs/x": "flat\n", "keep": "k\n"})
    pull(up, 1, {"pkg/a.py": changed(l2="pr"), "docs/x": None, "docs/x/y": "d\n"})
    up.commit({"pkg/a.py": changed(l29="ours")}, parents=[base])
    expected = merged(up)
    lock = world.locked({"up": component(up, merge=[request(1)], expect=expected)})
    assert lock.components["up"].repository == expected
    message = world.refused({"up": component(up, merge=[request(1)], expect=base)})
    assert "does not have the expected tree" in message and expected in message
    up.commit({"pkg/a.py": changed(l29="ours"), "docs/x": "ours\n"}, parents=[base])
    message = world.refused({"up": component(up, merge=[request(1)], expect=expected)})
    assert "docs/x was changed on both sides" in message
