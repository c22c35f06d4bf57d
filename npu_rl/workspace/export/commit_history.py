"""The commits in a workspace's code tree and full checkouts, read from the user's repositories."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.commits import CommitFacts, commits_down_to
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import short
from npu_rl.workspace.folder.local_commits import git_of
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name

ROOT = "code"
SOURCES = "src/"  # what the root of a whole checkout begins with
_UNFINISHED = {"rebase-merge": "rebase", "rebase-apply": "rebase", "MERGE_HEAD": "merge"} | {
    f"{name.replace('-', '_').upper()}_HEAD": name for name in ("cherry-pick", "revert")
}


@dataclass(frozen=True)
class WorkspaceHistory:
    """One root's commits from the first to HEAD, and setup's commits. `trees` reads the objects of all roots."""

    root: str
    commits: tuple[CommitFacts, ...]
    laid: tuple[CommitFacts, ...]
    trees: Trees

    @property
    def is_as_laid(self) -> bool:
        """Return whether HEAD is the commit that setup created."""
        return self.commits[-1].id == self.laid[-1].id


@contextlib.contextmanager
def open_histories(
    paths: WorkspacePaths, laid: Mapping[str, str], products: Collection[str]
) -> Iterator[dict[str, WorkspaceHistory]]:
    """Read the histories of some roots.

    Args:
        laid: The commits that setup laid, by root.
        products: Files that `setup --build` has placed, by their paths in the workspace.

    Raises:
        WorkspaceError: For changes that are in no commit, a rebase or merge that is not finished, and merges.
    """
    repositories = {root: paths.git / repository_name(root) for root in laid}
    for root, repository in repositories.items():
        _check_finished(paths.root / root, repository)
        _check_clean(paths.root / root, repository, {path.removeprefix(f"{root}/") for path in products})
    objects = (paths.git / "objects", *(repository / "objects" for repository in repositories.values()))
    with tempfile.TemporaryDirectory(prefix="npu-rl-export-") as scratch:
        init_bare(Path(scratch))
        with Trees(Git(Path(scratch), alternates=objects)) as trees:
            yield {
                root: WorkspaceHistory(
                    root, _commits(repository, root, "HEAD"), _commits(repository, root, laid[root]), trees
                )
                for root, repository in repositories.items()
            }


def _check_finished(where: Path, repository: Path) -> None:
    for name, command in _UNFINISHED.items():
        if (repository / name).exists():
            raise WorkspaceError(
                f"git is in the middle of `git {command}`",
                where=str(where),
                hint=f"Finish it: git {command} --continue (or --abort)",
            )


def _check_clean(work_tree: Path, repository: Path, products: Collection[str]) -> None:
    """Raise WorkspaceError for changed and untracked files; byte code that upstream does not ignore is left out."""
    git = replace(git_of(repository), work_tree=work_tree)
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all")
    try:
        status = [os.fsdecode(line) for line in git.lines("--no-optional-locks", "status", *options)]
    except GitError as error:
        raise WorkspaceError(
            f"The git repository of {work_tree.name} can't be read", where=str(work_tree), why=error.why
        ) from error
    changed = [line for line in status if "__pycache__/" not in line and line[3:] not in products]
    if changed:
        more = [f"and {len(changed) - 20} more"] if len(changed) > 20 else []
        raise WorkspaceError(
            f"{work_tree.name} has changes that are in no commit",
            where=str(work_tree),
            why="\n".join([*changed[:20], *more]),
            hint="Commit them (git add -A, git commit), or move untracked files away.",
        )


def _commits(repository: Path, root: str, tip: str) -> tuple[CommitFacts, ...]:
    """Return the commits up to a tip, oldest first. Raises WorkspaceError for merges."""
    git = git_of(repository)
    try:
        found = commits_down_to(git, git.text("rev-parse", "--verify", f"{tip}^{{commit}}"))
    except (GitError, LookupError) as error:  # the latter for a message in an unknown encoding
        raise WorkspaceError(f"The history of {root} can't be read", why=str(error)) from error
    merge = found[-1]
    if merge.parents:
        raise WorkspaceError(
            f"{merge} in {root} is a merge",
            why="Patches need a linear history.",
            hint=f"Rebase your commits onto {short(merge.parents[0])}: git rebase {short(merge.parents[0])}",
        )
    return tuple(reversed(found))
