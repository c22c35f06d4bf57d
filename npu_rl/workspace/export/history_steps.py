"""The commits of a history as steps: npu-rl's own (a pin, a merge, a patch, the runtime) and the user's.

setup writes one commit per step, and a rebase rewrites those after the first one that it changes. A step is known by
its message, which names ids, or by its trailers `Component` and `Patch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.git.objects import EMPTY_TREE
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_names import slug_of_file, trailers
from npu_rl.workspace.export.commit_history import SOURCES, HistoryCommit, WorkspaceHistory

TREE = "tree"  # what the assembled tree is called beside the components
_FIXUP = re.compile(r"(fixup|squash|amend)! ")


@dataclass(frozen=True)
class LaidStep:
    """A commit of setup. `patch` is the patch it applies; None for a pin, a merge, dist-info and the runtime."""

    commit: HistoryCommit
    component: str
    patch: LockedPatch | None


@dataclass(frozen=True)
class PatchCommit:
    """A commit that becomes patches.

    Attributes:
        before: The tree before it.
        laid: The patch of setup that it is, as laid or as the user has changed it; None for a new one.
        is_reworded: Whether its message is the user's.
    """

    commit: HistoryCommit
    before: str
    laid: LaidStep | None
    is_reworded: bool = False


def steps_of(history: WorkspaceHistory, lock: Lock) -> list[PatchCommit]:
    """Return the commits that become patches, in order.

    Raises:
        WorkspaceError: For a commit between npu-rl's own steps, a step that was changed, moved or removed, and a
            `fixup!` that was not squashed yet.
    """
    pending = _laid_steps(history, lock)
    steps: list[PatchCommit] = []
    before, laid_before = (
        EMPTY_TREE,
        {s.commit.id: b for s, b in zip(pending, _before(history.laid), strict=True)},
    )
    for commit in history.commits:
        laid = _find(commit, pending)
        if laid is not None and laid.patch is None:
            _check_unchanged(history, commit, before, laid, laid_before[laid.commit.id])
            _check_next(commit, laid, pending)
        elif laid is not None:
            steps.append(PatchCommit(commit, before, laid, commit.message != laid.commit.message))
        else:
            _check_squashed(commit, history.commits)
            _check_after_all(history, commit, before, pending)
            steps.append(PatchCommit(commit, before, None))
        if laid is not None:
            pending.remove(laid)
        before = commit.tree
    _check_complete(history.root, pending)
    return steps


def _before(commits: tuple[HistoryCommit, ...]) -> list[str]:
    return [EMPTY_TREE, *(commit.tree for commit in commits[:-1])]


def _laid_steps(history: WorkspaceHistory, lock: Lock) -> list[LaidStep]:
    """Return setup's commits with their effects, in the order that npu-rl writes them."""
    kinds = list(_kinds(lock, history.root))
    if len(kinds) != len(history.laid):
        raise WorkspaceError(
            f"The history that setup created in {history.root} is not the lock's",
            why=f"The lock has {len(kinds)} steps, the history {len(history.laid)}.",
            hint="Save your commits elsewhere, and set the workspace up again.",
        )
    return [LaidStep(commit, *kind) for commit, kind in zip(history.laid, kinds, strict=True)]


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


def _find(commit: HistoryCommit, pending: list[LaidStep]) -> LaidStep | None:
    """Return the setup step of a commit, found by its id or message, or else the patch that its trailers name."""
    for step in pending:
        if commit.id == step.commit.id or commit.message == step.commit.message:
            return step
    named = trailers(commit.message, "Patch")
    for step in pending:
        if step.patch is None:
            continue
        short = f"{step.component}/{slug_of_file(step.patch.file)}"
        if step.patch.file in named or short in named:
            return step
    return None


def _check_unchanged(
    history: WorkspaceHistory, commit: HistoryCommit, before: str, laid: LaidStep, laid_before: str
) -> None:
    """Raise WorkspaceError if the effect of a step has changed, not counting patches that now precede it."""
    if commit.id == laid.commit.id:
        return
    changed = history.trees.changed
    if list(changed(before, commit.tree)) != list(changed(laid_before, laid.commit.tree)):
        raise WorkspaceError(
            f"The step `{laid.commit.subject}` was changed",
            where=str(commit),
            why="It is what upstream delivers; only patches can change it.",
            hint=_undo_of_amend(history, commit, before, laid)
            or "Make the change in a commit on top: git rebase -i, or go back with git reflog.",
        )


def _check_next(commit: HistoryCommit, laid: LaidStep, pending: list[LaidStep]) -> None:
    first = next(step for step in pending if step.patch is None)
    if first is not laid:
        raise WorkspaceError(
            f"The step `{laid.commit.subject}` was moved before `{first.commit.subject}`",
            where=str(commit),
            hint="Keep the order of npu-rl's own steps: go back with git reflog.",
        )


def _check_squashed(commit: HistoryCommit, commits: tuple[HistoryCommit, ...]) -> None:
    if not _FIXUP.match(commit.subject):
        return
    subject = commit.subject
    while found := _FIXUP.match(subject):
        subject = subject[found.end() :]
    fixed = next((one.id[:12] for one in commits if one.subject == subject), None)
    which = "COMMIT^   # COMMIT: the one that it fixes" if fixed is None else f"{fixed}^"
    raise WorkspaceError(
        f"{commit} is not squashed yet",
        hint=f"Squash it into its commit: git rebase -i --autosquash {which}",
    )


def _check_after_all(
    history: WorkspaceHistory, commit: HistoryCommit, before: str, pending: list[LaidStep]
) -> None:
    step = next((step for step in pending if step.patch is None), None)
    if step is not None and all(_find(one, [step]) is None for one in history.commits):
        raise WorkspaceError(
            f"The step `{step.commit.subject}` is missing",
            where=f"{commit} is in its place",
            why="It was amended, removed or squashed into another commit.",
            hint=_undo_of_amend(history, commit, before, step) or _way_back(step),
        )
    if step is not None:
        raise WorkspaceError(
            f"{commit} is between npu-rl's own steps",
            where=f"before `{step.commit.subject}`",
            why="New patches are applied after the lock's, on top of all other steps.",
            hint="Move it to the end of git rebase -i's list. To change a patch of the stack, squash into its "
            "commit (git commit --fixup COMMIT, git rebase -i --autosquash COMMIT^).",
        )


def _undo_of_amend(
    history: WorkspaceHistory, commit: HistoryCommit, before: str, step: LaidStep
) -> str | None:
    """Return how to split the last commit into a step and the change of a `git commit --amend`; None if it is not that.

    The newest commit of a workspace is npu-rl's own.
    """
    laid = [one.id for one in history.laid]
    above = [one.id for one in history.commits[:-1]]
    if commit is not history.commits[-1] or laid != [*above, step.commit.id]:
        return None
    changed = history.trees.changed
    if not {row[0] for row in changed(before, step.commit.tree)} <= {
        row[0] for row in changed(before, commit.tree)
    }:
        return None
    return (
        "`git commit --amend` changed npu-rl's commit. Put it back, and commit on top: "
        f"git reset --soft {step.commit.id[:12]}; git commit"
    )


def _way_back(step: LaidStep) -> str:
    return f"Go back with git reflog, or rebase your commits on {step.commit.id[:12]} and what follows it."


def _check_complete(root: str, pending: list[LaidStep]) -> None:
    missing = next((step for step in pending if step.patch is None), None)
    if missing is not None:
        raise WorkspaceError(
            f"The history of {root} lacks the step `{missing.commit.subject}`",
            why="It was rewritten: an own step was removed or squashed into another.",
            hint=_way_back(missing),
        )
