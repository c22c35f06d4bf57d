"""The files that patches are checked against: those of a folder, or of a git tree."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from npu_rl.common.bounded import read_file, read_if_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import SYMLINK
from npu_rl.stack.lint.upstream_releases import UpstreamReleases

_LARGEST_POINTER = 4096  # bytes of a `.git` file


class ComparedFiles(Protocol):
    """Files by path, and the known releases that contain them."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it is missing. Raises PatchError if it is not a file."""

    def releases(self, path: str, blob: str) -> Sequence[str]:
        """Return the releases whose file is this blob, newest first. The id may be abbreviated."""


@dataclass(frozen=True)
class TreeFiles:
    """The files of a git tree, such as that of a component before a patch."""

    trees: Trees
    root: str
    tagged: UpstreamReleases | None = None

    def read(self, path: str) -> bytes | None:
        """Return a file's content."""
        entry = None
        for entry in self.trees.entries_on_path(self.root, path):
            if entry is not None and entry.mode == SYMLINK:
                raise _linked(path)
        if entry is None or entry.is_tree:
            return None
        return self.trees.blob(entry.oid)

    def releases(self, path: str, blob: str) -> Sequence[str]:
        """Return the tags of the component's repository with this file, newest first."""
        return () if self.tagged is None else self.tagged.having(path, blob)


@dataclass(frozen=True)
class FolderFiles:
    """The files of a folder as they are on disk. In a git work tree its tags are the releases."""

    folder: Path

    def read(self, path: str) -> bytes | None:
        """Return a file's content."""
        at = self.folder
        for part in path.split("/"):
            at = at / part
            if at.is_symlink():
                raise _linked(path)
        with disk_errors(at):
            return read_if_file(at)

    def releases(self, path: str, blob: str) -> Sequence[str]:
        """Return the tags with this file, newest first."""
        if self._tagged is None:
            return ()
        prefix, tags, objects = self._tagged
        with _borrowing(objects) as trees:
            return [tag for tag, root in tags if _has(trees, root, prefix + path, blob)]

    @cached_property
    def _tagged(self) -> tuple[str, list[tuple[str, str]], Path] | None:
        """The folder's path in its work tree, the tags with their trees, and the folder of objects."""
        top = next((one for one in (self.folder, *self.folder.parents) if (one / ".git").exists()), None)
        if top is None:
            return None
        git = top / ".git"
        try:
            if git.is_file():
                pointer = read_file(git, _LARGEST_POINTER).decode("utf-8", "surrogateescape")
                git = top / pointer.removeprefix("gitdir:").strip()
            repository = Git(git)
            objects = git / repository.text("rev-parse", "--git-path", "objects")
            form = "%(refname:short)%00%(tree)%00%(*tree)"
            listing = repository.text("for-each-ref", "--sort=-creatordate", f"--format={form}", "refs/tags")
        except (GitError, OSError, ValueError):
            return None
        rows = [line.split("\0") for line in listing.splitlines()]
        tags = [(tag, tree or peeled) for tag, tree, peeled in rows if tree or peeled]
        inside = self.folder.relative_to(top).as_posix()
        return ("" if inside == "." else f"{inside}/"), tags, objects


def _has(trees: Trees, root: str, path: str, blob: str) -> bool:
    try:
        entry = trees.find(root, path)
    except GitError:  # of a shallow or partial clone
        return False
    return entry is not None and entry.oid.startswith(blob)


@contextmanager
def _borrowing(objects: Path) -> Iterator[Trees]:
    """Provide an empty repository that borrows objects, so that nothing is written or fetched into their own."""
    with tempfile.TemporaryDirectory(prefix="npu-rl-lint-") as folder:
        init_bare(Path(folder))
        with Trees(Git(Path(folder), alternates=(objects,))) as trees:
            yield trees


def _linked(path: str) -> PatchError:
    return PatchError(
        f"{path} is a symbolic link, or below one", hint="Patch the file that the link points to."
    )
