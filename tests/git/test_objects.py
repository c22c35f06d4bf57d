"""What `npu_rl.stack.git.objects` computes is what git computes: real git is the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import (
    EMPTY_TREE,
    EXECUTABLE,
    FILE,
    GITLINK,
    SYMLINK,
    TREE,
    Entry,
    MalformedObject,
    commit_tree_id,
    format_commit,
    format_tree,
    nested,
    object_id,
    parse_tree,
)

AUTHOR = "A U Thor <author@example.com>"
BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
names = (
    st.binary(min_size=1, max_size=12)
    .filter(lambda b: not set(b) & {0, 0x2F} and b.lower() not in (b".", b"..") and b".git" not in b.lower())
    .filter(lambda b: b"~" not in b and b"\\" not in b and not b.endswith((b".", b" ")))
    .map(lambda b: b.decode("utf-8", "surrogateescape"))
)
# Names that sort differently as a file and as a folder.
near = st.sampled_from(["a", "a.b", "a-b", "a0", "ab", "a b", "ä", "A"])
ids = st.binary(min_size=20, max_size=20).filter(any).map(bytes.hex)  # an index takes no null id
modes = st.sampled_from([FILE, EXECUTABLE, SYMLINK, GITLINK, TREE])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Git]:
    folder = tmp_path_factory.mktemp("objects") / "r"
    init_bare(folder)
    yield Git(folder)


@few
@given(entries=st.dictionaries(near | names, st.builds(Entry, modes, ids), max_size=8))
def test_a_tree_is_what_mktree_makes_of_it(repository: Git, entries: dict[str, Entry]) -> None:
    kinds = {TREE: "tree", GITLINK: "commit"}
    lines = "".join(f"{e.mode} {kinds.get(e.mode, 'blob')} {e.oid}\t{n}\0" for n, e in entries.items())
    made = repository.text("mktree", "-z", "--missing", input=lines.encode("utf-8", "surrogateescape"))
    data = format_tree(entries)
    assert object_id("tree", data) == made
    assert parse_tree(data) == entries
    assert repository.run("cat-file", "tree", made).stdout == data


paths = st.lists(near | names, min_size=1, max_size=4).map("/".join)


def _no_path_in_the_way(files: dict[str, Entry]) -> bool:
    return not any(other.startswith(path + "/") for path in files for other in files)


@few
@given(
    files=st.dictionaries(paths, st.builds(Entry, modes.filter(lambda m: m != TREE), ids), max_size=8).filter(
        _no_path_in_the_way
    )
)
def test_nested_trees_are_what_write_tree_makes_of_an_index(repository: Git, files: dict[str, Entry]) -> None:
    index = repository.git_dir / "index"
    index.unlink(missing_ok=True)
    lines = "".join(f"{e.mode} {e.oid}\t{p}\0" for p, e in files.items())
    repository.run("update-index", "-z", "--index-info", input=lines.encode("utf-8", "surrogateescape"))
    root = repository.text("write-tree", "--missing-ok")
    trees = list(nested(files.items()))
    assert trees[-1][0] == root
    for oid, data in trees:
        assert repository.run("cat-file", "tree", oid).stdout == data


@few
@given(
    seconds=st.integers(min_value=0, max_value=2**32),
    message=st.text(max_size=60).filter(lambda t: "\0" not in t),
    parents=st.integers(min_value=0, max_value=3),
)
def test_a_commit_is_what_commit_tree_makes_of_it(
    repository: Git, seconds: int, message: str, parents: int
) -> None:
    repository.run("mktree", input=b"")
    before = [_commit(repository, [], i, "parent\n") for i in range(parents)]
    data = format_commit(EMPTY_TREE, before, AUTHOR, seconds, message)
    made = _commit(repository, before, seconds, message)
    assert object_id("commit", data) == made
    assert commit_tree_id(data) == EMPTY_TREE


def _commit(repository: Git, parents: list[str], seconds: int, message: str) -> str:
    who = {}
    for role in ("AUTHOR", "COMMITTER"):
        who[f"GIT_{role}_NAME"], who[f"GIT_{role}_EMAIL"] = "A U Thor", "author@example.com"
        who[f"GIT_{role}_DATE"] = f"@{seconds} +0000"
    options = [part for parent in parents for part in ("-p", parent)]
    there = Git(repository.git_dir, extra=who)
    return there.text("commit-tree", EMPTY_TREE, *options, input=message.encode("utf-8", "surrogatepass"))


def test_a_mode_that_old_software_wrote_with_a_leading_zero_is_a_folder() -> None:
    data = b"040000 a\0" + bytes.fromhex(EMPTY_TREE)
    assert parse_tree(data)["a"].is_tree


@pytest.mark.parametrize(
    "data",
    [
        b"100644 a\0" + b"1" * 19,
        b"100644 a",
        b"100644",
        b"100644 \0" + b"1" * 20,
        (b"100644 a\0" + b"1" * 20) * 2,
    ],
    ids=["short id", "no id", "no name", "empty name", "a name twice"],
)
def test_a_malformed_tree_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedObject):
        parse_tree(data)


@pytest.mark.parametrize("paths", [["a", "a/b"], ["a/b", "a"], ["a", "a"], ["a/b", "a/b"]])
def test_a_path_that_is_a_file_and_a_folder_is_refused(paths: list[str]) -> None:
    with pytest.raises(MalformedObject, match="a"):
        list(nested((path, Entry(FILE, BLOB)) for path in paths))


def test_only_a_commit_names_a_root_tree() -> None:
    with pytest.raises(MalformedObject, match="names no tree"):
        commit_tree_id(b"parent 123")
