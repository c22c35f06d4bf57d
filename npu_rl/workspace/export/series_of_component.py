"""The patches of each component in a history, in order, with the tree before and after each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npu_rl.common.errors import PatchError, WorkspaceError
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.message_template import SLUG
from npu_rl.stack.patches.patch_names import slug_of_file, slug_of_subject, trailers
from npu_rl.workspace.export.commit_split import Changes, CommitSplitter
from npu_rl.workspace.export.history_steps import TREE, PatchCommit


@dataclass(frozen=True)
class SeriesPatch:
    """One patch of a component.

    Attributes:
        before, after: The component's trees.
        step: The commit that it comes from.
        locked: The patch of the lock that it was; None for a new one.
        locked_before: The tree before that patch in the lock.
    """

    component: str
    slug: str
    before: str
    after: str
    step: PatchCommit
    locked: LockedPatch | None = None
    locked_before: str = ""

    @property
    def is_unchanged(self) -> bool:
        """Return whether the patch has the lock's trees, so that its text is kept in any form."""
        same = self.locked is not None and (self.locked_before, self.locked.tree) == (self.before, self.after)
        return same and not self.step.is_reworded


@dataclass
class SeriesByComponent:
    """Patches by component (`tree` for the assembled tree), and notes on commits.

    Attributes:
        split: Commits that give patches to several components, with their names.
        empty: Commits that change nothing.
    """

    patches: dict[str, list[SeriesPatch]] = field(default_factory=dict)
    split: list[tuple[str, list[str]]] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def series_by_component(trees: Trees, lock: Lock, steps: list[PatchCommit], head: str) -> SeriesByComponent:
    """Return the patches of all steps.

    Args:
        head: The tree of the last commit, which they have to give.

    Raises:
        WorkspaceError: If they would not give the tree of the last commit.
        PatchError: For two commits that give one name, and for a trailer that names no component of its commit.
    """
    found = SeriesByComponent()
    splitter = CommitSplitter(trees, lock)
    parts = [(step, splitter.split(step)) for step in steps]
    results = {name: assemble.merged(component) for name, component in lock.components.items()}
    for name in lock.components:
        results[name] = _add(trees, lock, name, results[name], parts, found)
    root = assemble.lay_components(trees, lock, results)
    root = assemble.lay_dists(trees, lock, root)
    root = root if lock.runtime is None else assemble.lay_runtime(trees, lock.runtime, root)
    root = _add(trees, lock, TREE, root, parts, found)
    for step, changes in parts:
        if step.laid is None:
            note_commit(step, changes, found)
        elif len(changes) > 1 and step.commit.id != step.laid.commit.id:
            found.split.append((str(step.commit), list(changes)))
    if root != head:
        raise _other_tree(trees, root, head)
    return found


def _add(
    trees: Trees,
    lock: Lock,
    name: str,
    tree: str,
    parts: list[tuple[PatchCommit, dict[str, Changes]]],
    found: SeriesByComponent,
) -> str:
    """Add the patches of one component. Returns its tree after them."""
    series: list[SeriesPatch] = []
    locked_before = trees_before_patches(trees, lock, name, tree)
    for step, changes in parts:
        locked = step.laid.patch if step.laid is not None and step.laid.component == name else None
        if name not in changes and locked is None:
            continue
        own = changes.get(name, {})
        if locked is None:
            series.append(
                patch := SeriesPatch(
                    name, slug_of_step(step, name), tree, trees.put_all(tree, own.items()), step
                )
            )
        else:
            before = locked_before[locked.name]
            own = {**_unlaid_changes(trees, lock, name, before, locked.tree), **own}
            after = trees.put_all(tree, own.items())
            patch = SeriesPatch(name, slug_of_file(locked.file), tree, after, step, locked, before)
            series.append(patch)
        tree = patch.after
    check_names(series)
    found.patches[name] = series
    return tree


def trees_before_patches(trees: Trees, lock: Lock, name: str, tree: str) -> dict[str, str]:
    """Return the tree before each locked patch of a component, by its name."""
    patches = lock.components[name].patches if name in lock.components else lock.tree_patches
    if name == TREE and patches:
        tree, _ = assemble.assemble(trees, lock, with_tree_patches=False)
    return dict(zip((p.name for p in patches), (tree, *(p.tree for p in patches)), strict=False))


def _unlaid_changes(trees: Trees, lock: Lock, name: str, before: str, after: str) -> Changes:
    """Return a locked patch's changes to files outside the code tree."""
    component = lock.components.get(name)
    if component is None:
        return {}
    changed = trees.changed(before, after)
    return {path: entry for path, _, entry in changed if not assemble.code_paths(component, path)}


def slug_of_step(step: PatchCommit, name: str) -> str:
    """Return the slug of a new patch of a component."""
    for value in trailers(step.commit.message, "Patch"):
        component, _, slug = value.partition("/")
        if component == name and SLUG.fullmatch(slug):
            return slug
    if step.laid is not None and step.laid.patch is not None:
        return slug_of_file(step.laid.patch.file)  # a patch that now changes another component, too
    slug = slug_of_subject(step.commit.subject)
    if not slug:
        raise PatchError(
            f"{step.commit} has no usable name",
            why="Its subject has no letter or digit of ASCII.",
            hint=f"Add a line to its message: Patch: {name}/SLUG",
        )
    return slug


def check_names(series: list[SeriesPatch]) -> None:
    """Raise PatchError if two new patches have the same name."""
    taken: dict[str, SeriesPatch] = {}
    for patch in series:
        other = taken.setdefault(patch.slug, patch)
        if other is not patch and (patch.locked is None or other.locked is None):
            raise PatchError(
                f"Two commits give the patch {patch.component}/{patch.slug}",
                why=f"{other.step.commit}\n{patch.step.commit}",
                hint="Squash the second into the first (git rebase -i), or give it a name of its own with a line in "
                f"its message: Patch: {patch.component}/SLUG",
            )


def note_commit(step: PatchCommit, changes: Mapping[str, Changes], found: SeriesByComponent) -> None:
    """Note a commit that becomes several patches or none. Raises PatchError for a trailer that matches none of them."""
    if not changes:
        found.empty.append(str(step.commit))
    if len(changes) > 1:
        found.split.append((str(step.commit), list(changes)))
    for value in trailers(step.commit.message, "Patch"):
        component, _, slug = value.partition("/")
        if component not in changes or not SLUG.fullmatch(slug):
            names = ", ".join(changes) or "nothing"
            raise PatchError(
                f"`Patch: {value}` fits no patch of its commit",
                where=str(step.commit),
                why=f"The commit changes {names}; a trailer is COMPONENT/slug, a slug lower-case words and dashes.",
                hint="Correct the trailer: git commit --amend, or git rebase -i.",
            )


def _other_tree(trees: Trees, root: str, wanted: str) -> WorkspaceError:
    paths = [path for path, _, _ in trees.changed(root, wanted)]
    more = f"\nand {len(paths) - 10} more" if len(paths) > 10 else ""
    return WorkspaceError(
        "The patches would not give the tree of your last commit",
        why="These files would differ:\n" + "\n".join(paths[:10]) + more,
        hint="Nothing was written. Please report this as a bug, with `git log --stat` of these commits.",
    )
