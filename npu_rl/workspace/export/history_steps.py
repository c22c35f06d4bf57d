"""The commits of a history as steps: npu-rl's own (a pin, a merge, a patch, the runtime) and the user's.

setup writes one commit per step, and a rebase rewrites those after the first one that it changes. A step is known by
its message, which names ids, or by its trailers `Component` and `Patch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.git.commits import CommitFacts
from npu_rl.stack.git.objects import EMPTY_TREE
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_names import slug_of_file, trailers
from npu_rl.workspace.export.commit_history import SOURCES, WorkspaceHistory

TREE = "tree"  # what the assembled tree is called beside the components
_FIXUP = re.compile(r"(?:(?:fixup|squash|amend)! )+(.*)")


@dataclass(frozen=True)
class LaidStep:
    """A commit of setup, with the tree before it. `patch` is None for a pin, a merge, dist-info and the runtime."""

    commit: CommitFacts
    before: str
    component: str
    patch: LockedPatch | None


@dataclass(frozen=True)
class PatchCommit:
    """A commit that becomes patches.

    Attributes:
        before: The tree before it.
        laid: The patch of setup that it is, as laid or as the user has changed it; None for a new one.
    """

    commit: CommitFacts
    before: str
    laid: LaidStep | None


def steps_of(history: WorkspaceHistory, lock: Lock) -> list[PatchCommit]:
    """Return the commits that become patches, in order.

    Raises:
        WorkspaceError: For an own step of npu-rl that was changed or removed, and a `fixup!` that was not squashed.
    """
    pending = _laid_steps(history, lock)
    steps: list[PatchCommit] = []
    before = EMPTY_TREE
    for commit in history.commits:
        laid = _find(commit, pending)
        if laid is not None:
            pending.remove(laid)
        if laid is None or laid.patch is not None:
            _check_squashed(commit, history)
            steps.append(PatchCommit(commit, before, laid))
        elif not _does_the_same(history, commit, before, laid):
            raise _lost(history, laid, "was changed")
        before = commit.tree
    missing = next((step for step in pending if step.patch is None), None)
    if missing is not None:
        raise _lost(history, missing, "is missing")
    return steps


def _laid_steps(history: WorkspaceHistory, lock: Lock) -> list[LaidStep]:
    """Return setup's commits with their effects, in the order that npu-rl writes them."""
    trees = [EMPTY_TREE, *(commit.tree for commit in history.laid)]
    rows = zip(history.laid, trees[:-1], _kinds(lock, history.root), strict=True)
    return [LaidStep(commit, before, *kind) for commit, before, kind in rows]


def _kinds(lock: Lock, root: str) -> Iterator[tuple[str, LockedPatch | None]]:
    for name, component in lock.components.items():
        if root.startswith(SOURCES) and root != SOURCES + name:
            continue
        yield from [(name, None)] * (1 + len(component.merges))
        yield from ((name, patch) for patch in component.patches)
    if root.startswith(SOURCES):
        return
    if any(component.dist for component in lock.components.values()):
        yield "", None
    if lock.runtime is not None:
        yield "", None
    yield from ((TREE, patch) for patch in lock.tree_patches)


def _find(commit: CommitFacts, pending: list[LaidStep]) -> LaidStep | None:
    """Return the setup step of a commit, found by its id or message, or else the patch that its trailers name."""
    for step in pending:
        if commit.id == step.commit.id or commit.message == step.commit.message:
            return step
    named = trailers(commit.message, "Patch")
    for step in pending:
        if step.patch is not None:
            short = f"{step.component}/{slug_of_file(step.patch.file)}"
            if step.patch.file in named or short in named:
                return step
    return None


def _does_the_same(history: WorkspaceHistory, commit: CommitFacts, before: str, laid: LaidStep) -> bool:
    """Return whether a commit has the effect of setup's step, not counting patches that now precede it."""
    if commit.id == laid.commit.id:
        return True
    changed = history.trees.changed
    return list(changed(before, commit.tree)) == list(changed(laid.before, laid.commit.tree))


def _lost(history: WorkspaceHistory, step: LaidStep, how: str) -> WorkspaceError:
    hint = "Go back with git reflog, and commit on top of npu-rl's own steps."
    above = [commit.id for commit in history.commits[:-1]]
    if [*above, step.commit.id] == [commit.id for commit in history.laid]:
        hint = (
            "`git commit --amend` changed npu-rl's commit. Put it back, and commit on top: "
            f"git reset --soft {step.commit.id[:12]}; git commit"
        )
    return WorkspaceError(
        f"The step `{step.commit.subject}` of {history.root} {how}",
        why="It is what upstream and npu-rl deliver; only patches can change it.",
        hint=hint,
    )


def _check_squashed(commit: CommitFacts, history: WorkspaceHistory) -> None:
    found = _FIXUP.match(commit.subject)
    if found is not None:
        ids = (one.id[:12] for one in history.commits if one.subject == found[1])
        raise WorkspaceError(
            f"{commit} is not squashed yet",
            hint=f"Squash it into its commit: git rebase -i --autosquash {next(ids, 'COMMIT')}^",
        )
