"""The histories of a workspace's code tree and full checkouts, read from the user's working repositories.

Nothing is written into them, and no program that their configuration names is run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, ObjectReader, init_bare
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import commit_tree_id, short
from npu_rl.workspace.folder.local_commits import git_of
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name

ROOT = "code"
SOURCES = "src/"  # what the root of a whole checkout begins with
_MAXIMUM_COMMITS = 20_000
_UNFINISHED = {
    "rebase-merge": "git rebase --continue (or --abort)",
    "rebase-apply": "git rebase --continue (or --abort)",
    "MERGE_HEAD": "git merge --continue (or --abort)",
    "CHERRY_PICK_HEAD": "git cherry-pick --continue (or --abort)",
    "REVERT_HEAD": "git revert --continue (or --abort)",
}


@dataclass(frozen=True)
class HistoryCommit:
    """One commit of the history, with the id of its tree."""

    id: str
    tree: str
    message: str

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.strip().partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{short(self.id)} {self.subject}"


@dataclass(frozen=True)
class WorkspaceHistory:
    """One root's commits from the first to HEAD, and setup's commits. `trees` reads the objects of all roots."""

    root: str
    commits: tuple[HistoryCommit, ...]
    laid: tuple[HistoryCommit, ...]
    trees: Trees

    @property
    def is_as_laid(self) -> bool:
        """Return whether HEAD is the commit that setup created."""
        return self.commits[-1].id == self.laid[-1].id


@contextlib.contextmanager
def open_histories(paths: WorkspacePaths, laid: Mapping[str, str]) -> Iterator[dict[str, WorkspaceHistory]]:
    """Read the histories of some roots.

    Args:
        laid: The commits that setup laid, by root.

    Raises:
        WorkspaceError: If a repository is missing, can't be trusted, or is in the middle of a rebase or merge; for a
            history with merges.
    """
    read = {root: _read(paths, root, commit) for root, commit in laid.items()}
    repositories = [paths.git / repository_name(root) for root in laid]
    objects = (paths.git / "objects", *(repository / "objects" for repository in repositories))
    with tempfile.TemporaryDirectory(prefix="npu-rl-export-") as folder:
        scratch = Path(folder, "git")
        init_bare(scratch)
        with Trees(Git(scratch, alternates=objects)) as trees:
            yield {root: WorkspaceHistory(root, *commits, trees) for root, commits in read.items()}


_Commits = tuple[HistoryCommit, ...]


def _read(paths: WorkspacePaths, root: str, laid: str) -> tuple[_Commits, _Commits]:
    """Return the commits up to a root's HEAD, and setup's commits."""
    repository = paths.git / repository_name(root)
    _require_readable(paths, root, repository)
    seen = git_of(repository)
    return _commits(seen, root, "HEAD"), _commits(seen, root, laid)


def _require_readable(paths: WorkspacePaths, root: str, repository: Path) -> None:
    where = str(paths.root / root)
    if not repository.is_dir():
        raise WorkspaceError(
            "This copy of the workspace has no git repository",
            where=where,
            hint="Run the export in the copy where you committed.",
        )
    for name, command in _UNFINISHED.items():
        if os.path.lexists(repository / name):
            raise WorkspaceError(
                f"git is in the middle of `{command.partition(' --')[0]}`",
                where=where,
                hint=f"Finish it: {command}",
            )


def _commits(seen: Git, root: str, tip: str) -> tuple[HistoryCommit, ...]:
    """Return the commits up to a tip, oldest first. Raises WorkspaceError for merges and too many commits."""
    try:
        most = f"--max-count={_MAXIMUM_COMMITS + 1}"
        lines = seen.text("rev-list", "--parents", "--topo-order", most, tip, "--").splitlines()
        rows = [line.split() for line in reversed(lines)]
        if len(rows) > _MAXIMUM_COMMITS:
            raise WorkspaceError(f"The history of {root} has more than {_MAXIMUM_COMMITS} commits")
        with ObjectReader(seen) as reader:
            found = [_commit(row[0], reader.read(row[0])[1]) for row in rows]
    except GitError as error:
        raise WorkspaceError(f"The history of {root} can't be read", why=error.why) from error
    for row, commit in zip(rows, found, strict=True):
        if len(row) > 2:
            raise WorkspaceError(
                f"{commit} is a merge",
                why="Patches need a linear history.",
                hint=f"Rebase your commits onto {short(row[1])}: git rebase {short(row[1])}",
            )
    if sum(len(row) == 1 for row in rows) > 1:
        raise WorkspaceError(
            f"The history of {root} has two beginnings", hint="Rebase your commits onto those of setup."
        )
    return tuple(found)


def _commit(oid: str, data: bytes) -> HistoryCommit:
    head, _, message = data.partition(b"\n\n")
    named = [
        line[9:].decode("ascii", "replace") for line in head.split(b"\n") if line.startswith(b"encoding ")
    ]
    try:
        text = message.decode(named[0] if named else "utf-8", "replace")
    except LookupError:
        text = message.decode("utf-8", "replace")
    return HistoryCommit(oid, commit_tree_id(data), text.replace("\r\n", "\n"))
