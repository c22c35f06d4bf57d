"""The commits that a port names, in histories with merges, reverts and branches older than the pin."""

from __future__ import annotations

from tests.port.upstream_versions import TWO, Versions, module
from tests.support import ok

UPSTREAM, GONE = "pkg/upstream.py", "pkg/gone.py"
WITH_IT = module("upstream", second_2="x * 7")


def to_next(versions: Versions) -> str:
    """Port to the branch `next`, and return what is printed, as one line."""
    return " ".join(versions.port("--to", "next", "--manifest", "m.yaml").stdout.split())


def test_after_a_revert_the_commit_that_made_the_change_again(versions: Versions) -> None:
    up = versions.upstream
    up.commit({UPSTREAM: WITH_IT}, "take seven", on="next", parents=["v1"])
    up.commit({UPSTREAM: module("upstream")}, "Revert it", on="next")
    again = up.commit({UPSTREAM: WITH_IT}, "take seven again", on="next")
    up.commit({UPSTREAM: WITH_IT + "# end\n"}, "a comment", on="next")
    versions.keep("0004")
    assert f"by commit {again} take seven again" in to_next(versions)


def test_a_change_that_a_merge_made_itself(versions: Versions) -> None:
    up = versions.upstream
    topic = up.commit({UPSTREAM: module("upstream", first_2="x * 5")}, "a topic", on="topic", parents=["v1"])
    main = up.commit({"pkg/other.py": "X = 1\n"}, "other", on="next", parents=["v1"])
    both = module("upstream", first_2="x * 5", second_2="x * 7")
    merge = up.commit({UPSTREAM: both}, "merge it by hand", on="next", parents=[main, topic])
    up.commit({UPSTREAM: both + "# end\n"}, "a comment", on="next")
    versions.keep("0004")
    assert f"by commit {merge} merge it by hand" in to_next(versions)


def test_a_branch_without_the_function_did_not_remove_it(versions: Versions) -> None:
    """It was forked before the function came, and merged after the pin."""
    up = versions.upstream
    without = module("upstream").split("def upstream_second")[0]
    old = up.commit({UPSTREAM: without}, "before", on="topic", parents=["v1"])
    pin = up.commit({UPSTREAM: module("upstream")}, "add functions", on="release", parents=[old])
    up.commit({UPSTREAM: "# A topic.\n" + without}, "a topic", on="topic", parents=[old])
    up.commit({UPSTREAM: "# A topic.\n" + module("upstream")}, "merge", on="next", parents=[pin, "topic"])
    removing = up.commit({UPSTREAM: "# A topic.\n" + without}, "remove functions", on="next")
    text = versions.manifest.read_text().replace("refs/tags/v1", "refs/heads/release")
    versions.manifest.write_text(text)
    versions.keep("0004")
    assert f"deleted by commit {removing} remove functions" in to_next(versions)


def test_a_deleted_file_that_another_branch_changed(versions: Versions) -> None:
    up = versions.upstream
    topic = up.commit({GONE: module("gone", third_1="x * 3")}, "a topic", on="topic", parents=["v1"], days=2)
    deleting = up.commit({GONE: None}, "delete gone", on="next", parents=["v1"], days=1)
    up.commit({GONE: None}, "merge, and keep it deleted", on="next", parents=[deleting, topic], days=3)
    versions.keep("0006")
    assert f"deleted by commit {deleting} delete gone" in to_next(versions)


def test_a_file_that_became_a_folder(versions: Versions) -> None:
    up = versions.upstream
    text = TWO["pkg/new_home.py"]
    making = up.commit({GONE: None, f"{GONE}/gone.py": text}, "a folder", on="next", parents=["v1"])
    versions.keep("0006")
    shown = to_next(versions)
    assert f"{GONE} is a folder now deleted by commit {making} a folder" in shown
    ok(versions.port("--abort"))
