"""User commits whose tree a new lock contains; setup replaces them without --discard, and keeps a copy."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.stack.git.messages import GitError
from npu_rl.workspace.folder.local_commits import git_of, own_history
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name


def are_carried(paths: WorkspacePaths, coming: Mapping[str, str]) -> bool:
    """Return whether each root's HEAD has the tree in `coming`, and branches and stashes have no other commits."""
    commits = read_receipt(paths).commits.items()
    changed = [(root, commit) for root, commit in commits if own_history(paths.git, root, commit)]
    return all(_is_carried(paths, root, commit, coming.get(root)) for root, commit in changed)


def _is_carried(paths: WorkspacePaths, root: str, commit: str, tree: str | None) -> bool:
    git = git_of(paths.git / repository_name(root))
    try:
        others = git.text("rev-list", "--max-count=1", "--all", "--not", "HEAD", commit, "--")
        return not others and git.text("rev-parse", "--verify", "HEAD^{tree}") == tree
    except GitError:
        return False
