"""The work tree of a port: a git repository with a commit for the new version and one for each ported patch.

Patches are ported in its objects alone. Files are laid only for a person to see, each by a rename, and never over a
file whose content differs from the last one laid.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.confined_changes import Confined
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.assemble import AUTHOR, EPOCH
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import (
    EMPTY_TREE,
    EXECUTABLE,
    GITLINK,
    SYMLINK,
    Entry,
    commit_tree_id,
    format_commit,
    object_id,
)

INPUT_REF = "refs/npu-rl/input"
LAID_REF = "refs/npu-rl/laid"  # the tree on disk, which no commit has at a conflict
_BRANCH = "refs/heads/main"
_LARGEST = 1 << 30
_SHOWN = 20
_MARKER = re.compile(rb"(?m)^(<{7}|>{7}) ")
_BYTE_CODE = re.compile(r"(.*/)?__pycache__/.*|.*\.py[co]")


@dataclass(frozen=True)
class WorkTreeFiles:
    """The content of the work tree: its tree, and new files that are neither the patch's nor added with git."""

    tree: str
    unknown: tuple[str, ...]


class PortWorkTree:
    """The repository in the folder `tree` of a port.

    Refs and index are written by renames, without git's locks, which a killed git would leave.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git_dir = folder / ".git"
        self.repository = Git(self.git_dir, folder)
        self._unseen = self.git_dir / "npu-rl-new"
        self._inside = Confined(folder)

    def create(self) -> None:
        """Create the repository, unless it exists."""
        with disk_errors(self.folder):
            init_bare(self.git_dir, bare=False)

    def commit(self, trees: Trees, tree: str, parent: str | None, number: int, message: str) -> str:
        """Write a commit and return its id."""
        parents = [] if parent is None else [parent]
        return trees.write_object(
            "commit", format_commit(tree, parents, AUTHOR, EPOCH + number, message.strip() + "\n")
        )

    def anchor(self, ref: str, oid: str) -> None:
        """Point a ref at an object, so that git keeps it."""
        with disk_errors(self.git_dir):
            self._inside.make((self.git_dir / ref).parent)
            self._inside.write(self.git_dir / ref, f"{oid}\n".encode(), by=self._unseen)

    def files(self, trees: list[str]) -> set[str]:
        """Return the paths in any of these trees; none if the repository is gone."""
        if not self.git_dir.is_dir():
            return set()
        found: set[str] = set()
        for tree in trees:
            try:
                listing = self.repository.lines("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
            except GitError:
                continue
            found |= {path.decode("utf-8", "surrogateescape") for path in listing}
        return found

    # -- laying ----------------------------------------------------------------------------------

    def check_untouched(self, trees: Trees, laid: str, laying: str) -> None:
        """Raise PatchError for a file that differs both from the tree that was written and from the next one.

        Only files that differ between the two are read: laying changes no others.
        """
        touched = []
        for path, before, after in trees.changed(laid, laying):
            if self._found(path) not in (None, _content_of(before), _content_of(after)):
                touched.append(path)
        if touched:
            more = f"\nand {len(touched) - _SHOWN} more" if len(touched) > _SHOWN else ""
            raise PatchError(
                "Files of the work tree have changes that are in no patch",
                where=str(self.folder),
                why="\n".join(touched[:_SHOWN]) + more,
                hint="npu-rl would write over them. Copy what you need and put them back "
                f"(git -C {self.folder} checkout -- FILE), then run the same command.",
            )

    def lay(self, trees: Trees, laid: str, laying: str) -> None:
        """Write the files that differ between two trees, after `check_untouched`."""
        with disk_errors(self.folder):
            for path, before, after in trees.changed(laid, laying):
                if after is None:
                    self._remove(path, before)
                elif self._found(path) != _content_of(after) or before is None or before.mode != after.mode:
                    self._write(path, after, trees)

    def show(self, commit: str) -> None:
        """Set the user's branch and index to a commit; files stay as they are."""
        self.anchor(_BRANCH, commit)
        with self._index() as (apart, index):
            apart.run("read-tree", commit)
            apart.run("update-index", "-q", "--refresh", ok=range(256))
            data = self._inside.read(index, _LARGEST)
        with disk_errors(self.git_dir):
            self._inside.write(self.git_dir / "index", data, by=self._unseen)
            self._inside.write(self.git_dir / "HEAD", f"ref: {_BRANCH}\n".encode(), by=self._unseen)

    @contextmanager
    def _index(self) -> Iterator[tuple[Git, Path]]:
        """Provide git with a private index, and the index's path."""
        index = self.git_dir / f"npu-rl-index-{os.urandom(6).hex()}"
        try:
            yield Git(self.git_dir, self.folder, index), index
        finally:
            self._inside.remove(index)

    def _found(self, path: str) -> tuple[str, str] | None:
        """Return the kind and blob id of a file; None if it is missing."""
        place = self.folder / path
        status = self._inside.status(place)
        if status is None:
            return None
        if place.is_symlink():
            return SYMLINK, object_id("blob", os.fsencode(place.readlink()))
        if not place.is_file():
            return "folder", ""
        return "file", object_id("blob", self._inside.read(place, _LARGEST))

    def _write(self, path: str, entry: Entry, trees: Trees) -> None:
        place = self.folder / path
        self._inside.make(place.parent)
        if entry.mode == SYMLINK:
            self._inside.remove(place)
            place.symlink_to(os.fsdecode(trees.blob(entry.oid)))
            return
        self._inside.write(place, trees.blob(entry.oid), by=self._unseen)
        if entry.mode == EXECUTABLE:
            handle = self._inside.handle(place, os.O_RDONLY)
            try:
                os.fchmod(handle, os.fstat(handle).st_mode | 0o111)
            finally:
                os.close(handle)

    def _remove(self, path: str, before: Entry | None) -> None:
        if self._found(path) != _content_of(before):
            return
        self._inside.remove(self.folder / path)
        for above in (self.folder / path).parents:
            if above == self.folder or any(above.iterdir()):
                return
            self._inside.remove(above)

    # -- reading ---------------------------------------------------------------------------------

    def read(self, trees: Trees, laid: str, own: Collection[str]) -> WorkTreeFiles:
        """Return the tree of the files on disk, without byte code.

        Args:
            laid: The tree that was laid.
            own: The paths of the patch, which may be new.
        """
        with self._index() as (apart, _):
            apart.run("read-tree", laid)
            apart.run("add", "-A", "--", ".")
            self._add_ignored(apart)
            tree = apart.text("write-tree")
        added = [
            (path, entry) for path, before, entry in trees.changed(laid, tree) if entry and before is None
        ]
        tree = trees.put_all(tree, [(path, None) for path, _ in added if _BYTE_CODE.fullmatch(path)])
        links = [path for path, entry in added if entry.mode == GITLINK]
        if links:
            what = "The work tree has a repository of its own in it, which no patch can hold"
            raise PatchError(what, where=str(self.folder), why=", ".join(links), hint="Move it elsewhere.")
        new = [path for path, _ in added if path not in own and not _BYTE_CODE.fullmatch(path)]
        known = self._added_by_user() if new else set()
        return WorkTreeFiles(tree, tuple(path for path in new if path not in known))

    def ignored(self) -> list[str]:
        """Return the untracked files that git ignores, except byte code in a cache."""
        listed = self.repository.lines("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        paths = (path.decode("utf-8", "surrogateescape") for path in listed)
        return [path for path in paths if "__pycache__/" not in path]

    def _add_ignored(self, apart: Git) -> None:
        """Add to a private index the ignored files that the user has added to their own index."""
        there = set(apart.lines("ls-files", "-z", "--cached"))
        names = sorted(self._added_by_user() - {path.decode("utf-8", "surrogateescape") for path in there})
        present = [name for name in names if self._inside.status(self.folder / name) is not None]
        if present:
            apart.run("add", "-f", "--", *present)

    def _added_by_user(self) -> set[str]:
        return {
            path.decode("utf-8", "surrogateescape")
            for path in self.repository.lines("ls-files", "-z", "--cached")
        }


def with_markers(trees: Trees, before: str, tree: str) -> list[str]:
    """Return the files of a tree with conflict markers that were not in `before`."""
    found = []
    for path, old, new in trees.changed(before, tree):
        if new is None or new.mode in (SYMLINK, GITLINK):
            continue
        known = 0 if old is None else len(_MARKER.findall(trees.blob(old.oid)))
        if len(_MARKER.findall(trees.blob(new.oid))) > known:
            found.append(path)
    return found


def tree_of(trees: Trees, commit: str) -> str:
    """Return the tree of a commit."""
    return commit_tree_id(trees.read_object(commit)[1])


def only(trees: Trees, tree: str, paths: Iterable[str]) -> str:
    """Return a tree with only these paths of another, as far as it has them."""
    found = ((path, trees.find(tree, path)) for path in paths)
    return trees.put_all(EMPTY_TREE, [(path, entry) for path, entry in found if entry is not None])


def _content_of(entry: Entry | None) -> tuple[str, str] | None:
    if entry is None:
        return None
    return SYMLINK if entry.mode == SYMLINK else "file", entry.oid
