"""Commits of a pull request: merge bases, its own commits, and drift.

*Drift* is the number of commits of the base branch that are new to the pin; the pull request's own commits do not
count. Merging PR 3054 into verl 54c9b would have moved the pin by 537 commits unnoticed: its own commit and a drift
of 536.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.common.errors import DriftError, LockError
from npu_rl.common.printable import counted
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.commits import commit_subjects
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import EMPTY_TREE, format_commit, short

_MAXIMUM_LINES = 50


@dataclass(frozen=True)
class IncomingCommits:
    """The commits that a merge or pick adds; the fields are those of `LockedMerge`."""

    merge_base: str
    commits: tuple[str, ...]
    older: int
    drift: int


class MergeHistory:
    """Commits of one repository, without their trees, including the merges made so far."""

    def __init__(self, repository: Git, pin: str, component: str) -> None:
        self.repository = repository
        self.current = pin
        self.component = component

    def pick(self, ref: str, head: str, base_ref: str, base_tip: str) -> IncomingCommits:
        """Return the commits of merge-base(head, base)..head. Raises LockError for an empty range."""
        base = self._merge_base(head, base_tip, ref)
        if base == head:
            raise LockError(
                f"{ref} of {self.component} has no commits to pick",
                why=f"Its head {short(head)} is already in {base_ref}: it was merged.",
                hint="Remove this entry, or set `base:` to the full id of the commit before it.",
            )
        return IncomingCommits(base, *self._commit_lines(f"{base}..{head}"), drift=0)

    def merge(
        self, ref: str, head: str, base_ref: str, base_tip: str, *, allow_drift: bool
    ) -> IncomingCommits:
        """Merge head into the pin and the earlier merges. Raises DriftError, LockError."""
        base = self._merge_base(self.current, head, ref)
        if base == head:
            raise LockError(
                f"{ref} of {self.component} adds no commits",
                why=f"Its head {short(head)} is an ancestor of the pin.",
                hint="Remove this entry from the manifest.",
            )
        new = self._count(head, f"^{self.current}")
        own = self._count(head, f"^{self.current}", f"^{base_tip}")
        drift = new - own
        if drift and not allow_drift:
            raise DriftError(
                f"Merging {ref} would move {self.component} by {counted(new, 'commit')}, "
                f"{drift} of them from {base_ref}",
                where=f"{short(self.current)} + {short(head)}",
                why=f"The pull request has {counted(own, 'commit')} of its own; the other {drift} are drift.",
                hint="Write `how: pick` to apply only its own changes, or `drift: allow` to merge all commits,\n"
                f"or pin {self.component} at the commit that the pull request starts from.",
            )
        incoming = IncomingCommits(base, *self._commit_lines(head, f"^{self.current}"), drift=drift)
        self._add_merge(head)
        return incoming

    def _add_merge(self, head: str) -> None:
        # Only the shape of the history matters here: the merge commit's tree may be any.
        data = format_commit(EMPTY_TREE, [self.current, head], "npu-rl <npu-rl@invalid>", 0, "merged\n")
        self.current = self.repository.text("hash-object", "-t", "commit", "-w", "--stdin", input=data)

    def _merge_base(self, left: str, right: str, ref: str) -> str:
        try:
            bases = self.repository.text("merge-base", "--all", left, right).split()
        except GitError as error:
            if error.code != 1:
                raise
            bases = []
        if not bases and not self._is_whole(left, right):
            raise LockError(
                f"A source of {self.component} is shallow: it lacks history that {ref} needs",
                why=f"It has no common ancestor of {short(left)} and {short(right)}.",
                hint="Complete that mirror (git fetch --unshallow), or name a complete repository.",
            )
        if len(bases) != 1:
            found = "no common ancestor" if not bases else f"{len(bases)} merge bases"
            raise LockError(
                f"Merging {ref} into {self.component} would not be reproducible",
                why=f"{short(left)} and {short(right)} have {found}.",
                hint="Use `how: pick`, with a full commit id as `base:`.",
            )
        return bases[0]

    def _is_whole(self, *revisions: str) -> bool:
        """Return whether the history has every parent: a source that is shallow, and is not asked so, lacks some."""
        try:
            self._count(*revisions)
        except GitError:
            return False
        return not (self.repository.git_dir / "shallow").exists()

    def _count(self, *revisions: str) -> int:
        return int(self.repository.text("rev-list", "--count", *revisions))

    def _commit_lines(self, *revisions: str) -> tuple[tuple[str, ...], int]:
        """Return "id subject" of the newest commits, oldest first, and the number of commits before them."""
        ids = self.repository.text("rev-list", "--reverse", "--topo-order", *revisions).split()
        shown = ids[-_MAXIMUM_LINES:]
        subjects = commit_subjects(self.repository, shown)
        lines = tuple(f"{short(oid)} {subject}" for oid, subject in zip(shown, subjects, strict=True))
        return lines, len(ids) - len(shown)
