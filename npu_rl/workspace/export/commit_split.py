"""Division of a commit's files by component, with the component's own paths.

A path of the code tree is mapped back through `take`. Files of no component, and those that patches of the tree change,
belong to the assembled tree, whose patches are applied last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.compose.assemble import code_paths
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import Entry
from npu_rl.stack.lock.lock_model import Lock, LockedComponent
from npu_rl.workspace.export.history_steps import TREE, PatchCommit
from npu_rl.workspace.verification.file_origin import upstream_path
from npu_rl.workspace.verification.verify import owner

Changes = dict[str, Entry | None]  # by path: the file after the commit, None if it removes it


@dataclass(frozen=True)
class CommitSplitter:
    """Splits commits by the lock's components."""

    trees: Trees
    lock: Lock

    @cached_property
    def _of_tree(self) -> frozenset[str]:
        """The files that the patches of the assembled tree change."""
        return frozenset(path for patch in self.lock.tree_patches for path in patch.files)

    def split(self, step: PatchCommit) -> dict[str, Changes]:
        """Return the changes of a step, by component.

        Raises:
            WorkspaceError: For a file that setup writes, and for one of two copies of a file.
        """
        laid_in_tree = step.laid is not None and step.laid.component == TREE
        found: dict[str, Changes] = {}
        for path, _, after in self.trees.changed(step.before, step.commit.tree):
            name, own = (TREE, path) if laid_in_tree else self._origin(step, path)
            found.setdefault(name, {})[own] = after
            if name != TREE:
                self._check_copies(step, self.lock.components[name], own, path, after)
        return found

    def _origin(self, step: PatchCommit, path: str) -> tuple[str, str]:
        name = owner(self.lock, "code", path)
        if name == "npu_rl_runtime" or path.partition("/")[0].endswith(".dist-info"):
            raise WorkspaceError(
                f"{step.commit} changes {path}",
                why="npu-rl writes this file itself, so no patch can change it.",
                hint="Take the file out of the commit.",
            )
        component = self.lock.components.get(name or "")
        own = upstream_path(component, path) if component is not None else None
        # A component's own patch is applied before those of the tree, also to a file that both change.
        is_own = step.laid is not None and step.laid.component == name
        if name is None or own is None or (path in self._of_tree and not is_own):
            return TREE, path
        return name, own

    def _check_copies(
        self, step: PatchCommit, component: LockedComponent, own: str, path: str, after: Entry | None
    ) -> None:
        """Raise WorkspaceError if the file also exists at another path of the code, and was not changed there."""
        for other in code_paths(component, own):
            if other != path and self.trees.find(step.commit.tree, other) != after:
                raise WorkspaceError(
                    f"{step.commit} changes {path} and not {other}",
                    why=f"Both are {own} of its component, so that a patch changes both.",
                    hint="Copy one over the other, and git commit --amend.",
                )
