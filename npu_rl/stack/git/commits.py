"""Commits made and read by GitPython's object model: the only module that imports it.

Its `Repo` would read the user's configuration, run git in their environment, and look for objects where
GIT_OBJECT_DIRECTORY and GIT_COMMON_DIR point, as in a hook. So it gets an object database and nothing else.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_rl.stack.git.command import Git, ObjectReader
from npu_rl.stack.git.objects import short

if TYPE_CHECKING:
    from git.objects import Commit

AUTHOR = ("npu-rl", "npu-rl@invalid")
EPOCH = 1577836800  # 2020-01-01 00:00 UTC


def create_commit(
    repository: Git, tree: str, message: str, parents: Sequence[str] = (), *, number: int = 0
) -> str:
    """Write a commit of npu-rl's own identity and return its id: the same arguments give the same id everywhere.

    Args:
        tree, parents: Ids. The tree need not exist yet.
        message: Bytes that are not UTF-8 are surrogates.
        number: Seconds after `EPOCH`, so that `git log` keeps the order.
    """
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    from git.objects import Commit, Tree
    from git.util import Actor
    from gitdb import LooseObjectDB  # type: ignore[import-untyped]

    settings = SimpleNamespace(get_value=lambda *names: names[-1])
    odb = LooseObjectDB(str(repository.git_dir / "objects"))
    repo: Any = SimpleNamespace(odb=odb, config_reader=lambda: settings)
    text: Any = message.encode("utf-8", "surrogateescape")
    actor, date = Actor(*AUTHOR), f"{EPOCH + number} +0000"
    commit = Commit.create_from_tree(
        repo,
        Tree(repo, bytes.fromhex(tree)),
        text,
        [Commit(repo, bytes.fromhex(parent)) for parent in parents],
        author=actor,
        committer=actor,
        author_date=date,
        commit_date=date,
    )
    return str(commit.hexsha)


def commit_subjects(repository: Git, ids: Sequence[str]) -> list[str]:
    """Return the first lines of commit messages."""
    with _reading(repository) as commit:
        return [str(commit(oid).summary) for oid in ids]


class CommitFacts(NamedTuple):
    """A commit as its object has it. `number` is its author's date in seconds after `EPOCH`, which a rebase keeps."""

    id: str
    tree: str
    parents: tuple[str, ...]
    number: int
    message: str

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.strip().partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{short(self.id)} {self.subject}"


def commits_down_to(repository: Git, tip: str, base: str = "") -> list[CommitFacts]:
    """Return the commits from a tip, first, down to the child of `base`, a root or a merge, last."""
    found: list[CommitFacts] = []
    with _reading(repository) as commit:
        while tip != base:
            one = commit(tip)
            parents = tuple(parent.hexsha for parent in one.parents)
            number = one.authored_date - EPOCH
            message = str(one.message).replace("\r\n", "\n")
            found.append(CommitFacts(tip, one.tree.hexsha, parents, number, message))
            if len(parents) != 1:
                break
            (tip,) = parents
    return found


@contextmanager
def _reading(repository: Git) -> Iterator[Callable[[str], Commit]]:
    """Provide commits by their ids, over one `ObjectReader`."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    from git.objects import Commit
    from gitdb.base import OStream  # type: ignore[import-untyped]

    with ObjectReader(repository) as reader:

        def stream(binsha: bytes) -> OStream:
            kind, data = reader.read(binsha.hex())
            return OStream(binsha, kind.encode(), len(data), io.BytesIO(data))

        repo: Any = SimpleNamespace(odb=SimpleNamespace(stream=stream))
        yield lambda oid: Commit(repo, bytes.fromhex(oid))
