"""The files of a tree or one of its folders, as input for a port."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import GITLINK, SYMLINK, TREE

_KINDS = {TREE: "a folder", SYMLINK: "a symbolic link", GITLINK: "a submodule"}


@dataclass(frozen=True)
class VersionFiles:
    """The files of a version of a component.

    Attributes:
        folder: Their folder in the tree; empty for its root.
    """

    trees: Trees
    tree: str
    folder: str = ""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if it is absent, a link, a submodule or a folder."""
        entry = self.trees.find(self.tree, f"{self.folder}/{path}" if self.folder else path)
        if entry is None or entry.is_tree or entry.mode in (GITLINK, SYMLINK):
            return None
        return self.trees.blob(entry.oid)

    def obstacle(self, path: str) -> str:
        """Describe a non-file at a path, or a non-folder at one of its parents; "" without either."""
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            place = "/".join(parts[:count])
            entry = self.trees.find(self.tree, f"{self.folder}/{place}" if self.folder else place)
            if entry is None:
                break
            if count == len(parts) or not entry.is_tree:
                kind = _KINDS.get(entry.mode, "" if count == len(parts) else "a file")
                return f"{place} is {kind} now" if kind else ""
        return ""

    def files(self) -> Iterable[str]:
        """Return every path."""
        start = f"{self.folder}/" if self.folder else ""
        return (path.removeprefix(start) for path, _ in self.trees.files(self.tree) if path.startswith(start))
