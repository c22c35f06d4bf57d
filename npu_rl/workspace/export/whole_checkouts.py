"""Patches from commits in `src/NAME`, a component's full checkout with the component's own paths.

A component has its commits in one place: `code`, or `src/NAME`. What both have gets from the one to the other by the
next lock and setup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.compose.assemble import code_paths
from npu_rl.stack.lock.lock_model import Lock, LockedComponent
from npu_rl.stack.patches.patch_names import slug_of_file
from npu_rl.workspace.export.commit_history import SOURCES, WorkspaceHistory
from npu_rl.workspace.export.commit_split import Changes
from npu_rl.workspace.export.history_steps import steps_of
from npu_rl.workspace.export.series_of_component import (
    SeriesByComponent,
    SeriesPatch,
    check_names,
    note_commit,
    slug_of_step,
    trees_before_patches,
)

_SHOWN = 10  # paths in a message


def take_whole_checkouts(
    lock: Lock, code: WorkspaceHistory, checkouts: Mapping[str, WorkspaceHistory], found: SeriesByComponent
) -> list[str]:
    """Replace a component's patches from `code` by those from its full checkout, if that has the user's commits.

    Returns the names of their components.

    Raises:
        WorkspaceError: For a component with commits in both, and where the next setup would not lay the files of both.
        PatchError: As `series_by_component`.
    """
    names = []
    for root, history in checkouts.items():
        if history.is_as_laid:
            continue
        name = root.removeprefix(SOURCES)
        component = lock.components[name]
        if history.laid[-1].tree != component.result:
            raise WorkspaceError(
                f"The history that setup created in {root} is not the lock's",
                hint="Save your commits elsewhere, and set the workspace up again.",
            )
        _check_one_place(root, component, found.patches[name])
        _check_shared_files(lock, code, history, component)
        found.patches[name] = _series(lock, name, history, found)
        names.append(name)
    return names


def _series(lock: Lock, name: str, history: WorkspaceHistory, found: SeriesByComponent) -> list[SeriesPatch]:
    before = trees_before_patches(
        history.trees, lock, name, history.commits[len(lock.components[name].merges)].tree
    )
    series: list[SeriesPatch] = []
    for step in steps_of(history, lock):
        trees = step.before, step.commit.tree
        changes: dict[str, Changes] = {name: {}} if trees[0] != trees[1] else {}
        locked = step.laid.patch if step.laid is not None else None
        if locked is not None:
            slug = slug_of_file(locked.file)
            series.append(SeriesPatch(name, slug, *trees, step, locked, before[locked.name]))
            continue
        note_commit(step, changes, found)
        if changes:
            series.append(SeriesPatch(name, slug_of_step(step, name), *trees, step))
    check_names(series)
    return series


def _check_one_place(root: str, component: LockedComponent, series: Sequence[SeriesPatch]) -> None:
    names = [patch.locked.name if patch.locked is not None else "" for patch in series]
    if names != [patch.name for patch in component.patches] or not all(p.is_unchanged for p in series):
        raise WorkspaceError(
            f"Both code and {root} have commits that change {root.removeprefix(SOURCES)}",
            why="The patches of a component are one series.",
            hint=f"Make the changes of code in {root}, too, and take them out of code (git rebase -i), or the other "
            "way round.",
        )


def _check_shared_files(
    lock: Lock, code: WorkspaceHistory, history: WorkspaceHistory, component: LockedComponent
) -> None:
    """Raise WorkspaceError unless the next setup reproduces the last commits of both histories."""
    changed = [path for path, _, _ in history.trees.changed(component.result, history.commits[-1].tree)]
    shared = {path: code_paths(component, path) for path in changed if code_paths(component, path)}
    of_tree = {path for patch in lock.tree_patches for path in patch.files}
    twice = [path for path, places in shared.items() if of_tree & set(places)]
    if twice:
        raise WorkspaceError(
            f"Commits of {history.root} change files that patches of the assembled tree change after them",
            why="\n".join(twice[:_SHOWN]),
            hint="Make these changes in code.",
        )
    if shared and code.commits[-1].tree != lock.tree:
        more = f"\nand {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else ""
        raise WorkspaceError(
            f"Commits of {history.root} change files that code has, too, and code has commits of its own",
            why="The next setup could assemble neither tree as you have it:\n"
            + "\n".join([*shared][:_SHOWN])
            + more,
            hint="Make these changes in code, or export the commits of one of the two, lock, set up and continue.",
        )
