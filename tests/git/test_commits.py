"""Commits made and read by GitPython, in no environment but npu-rl's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.commits import AUTHOR, EPOCH, commit_subjects, create_commit
from npu_rl.stack.git.objects import EMPTY_TREE, format_commit
from tests.support import Repo


@pytest.fixture
def upstream(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "up.git")


@pytest.mark.parametrize("name", ["GIT_OBJECT_DIRECTORY", "GIT_AUTHOR_DATE", "GIT_AUTHOR_NAME", "GIT_DIR"])
def test_a_commit_is_the_same_everywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/nowhere")
    init_bare(tmp_path)
    git = Git(tmp_path)
    git.run("mktree", input=b"")
    first = create_commit(git, EMPTY_TREE, "Größe\n\nnot UTF-8: \udcff\n")
    second = create_commit(git, EMPTY_TREE, "second\n", [first], number=2)
    git.run("fsck", "--strict", second)
    identity = f"{AUTHOR[0]} <{AUTHOR[1]}>"
    for oid, parents, number, message in (
        (first, [], 0, "Größe\n\nnot UTF-8: \udcff\n"),
        (second, [first], 2, "second\n"),
    ):
        wanted = format_commit(EMPTY_TREE, parents, identity, EPOCH + number, message)
        assert git.run("cat-file", "commit", oid).stdout == wanted


def test_subjects(upstream: Repo) -> None:
    first = upstream.commit({"a": "1"}, "Größe: first line\n\nbody")
    second = upstream.commit({"a": "2"}, "second")
    assert commit_subjects(Git(upstream.path), [second, first]) == ["second", "Größe: first line"]
    assert commit_subjects(Git(upstream.path), []) == []


@pytest.mark.parametrize("name", ["GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_DIR"])
def test_subjects_in_a_hook(upstream: Repo, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """git sets these for hooks of another repository."""
    head = upstream.commit({"a": "1"}, "a subject")
    monkeypatch.setenv(name, "/nowhere")
    assert commit_subjects(Git(upstream.path), [head]) == ["a subject"]
