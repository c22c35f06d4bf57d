"""The patches of each component in the histories of a workspace, in order, with the tree before and after each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npu_rl.common.errors import PatchError, WorkspaceError
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.message_template import SLUG
from npu_rl.stack.patches.patch_names import slug_of_file, slug_of_subject, trailers
from npu_rl.workspace.export.commit_history import SOURCES, WorkspaceHistory
from npu_rl.workspace.export.commit_split import Changes, CommitSplitter
from npu_rl.workspace.export.history_steps import TREE, PatchCommit, steps_of

# A key of a commit's changes: they are all that it does to the component, not only to what code has.
_WHOLE = "."


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
    def is_reworded(self) -> bool:
        """Return whether the message of its commit is not the one that setup wrote."""
        return self.step.laid is None or self.step.commit.message != self.step.laid.commit.message

    @property
    def is_unchanged(self) -> bool:
        """Return whether the patch has the lock's trees, so that its text is kept."""
        same = self.locked is not None and (self.locked_before, self.locked.tree) == (self.before, self.after)
        return same and not self.is_reworded


@dataclass(frozen=True)
class SplitCommit:
    """A commit that gives patches to several components."""

    commit: str
    components: list[str]


@dataclass
class SeriesByComponent:
    """Patches by component (`tree` for the assembled tree), and notes on commits.

    Attributes:
        split: Commits that give patches to several components.
        empty: Commits that change nothing.
    """

    patches: dict[str, list[SeriesPatch]] = field(default_factory=dict)
    split: list[SplitCommit] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def series_by_component(
    lock: Lock, code: WorkspaceHistory, checkouts: Mapping[str, WorkspaceHistory]
) -> SeriesByComponent:
    """Return the patches of all commits.

    Args:
        code: The history of the code tree.
        checkouts: Those of full checkouts in `src/NAME` with the user's commits, by root.

    Raises:
        WorkspaceError: If they would not give the tree of the last commit, or a component has commits in both places.
        PatchError: For a trailer that names no component of its commit.
    """
    trees, found = code.trees, SeriesByComponent()
    splitter = CommitSplitter(trees, lock)
    parts = [(step, splitter.split(step)) for step in steps_of(code, lock)]
    results = {name: assemble.merged(component) for name, component in lock.components.items()}
    for name in lock.components:
        results[name] = _add(trees, lock, name, results[name], parts, found)
    root = assemble.lay_dists(trees, lock, assemble.lay_components(trees, lock, results))
    root = root if lock.runtime is None else assemble.lay_runtime(trees, lock.runtime, root)
    root = _add(trees, lock, TREE, root, parts, found)
    if root != code.commits[-1].tree:
        raise _other_tree(trees, root, code.commits[-1].tree)
    for step, changes in parts:
        _note(step, changes, found)
    for at, history in checkouts.items():
        _add_checkout(lock, code, at.removeprefix(SOURCES), history, found)
    return found


_Parts = list[tuple[PatchCommit, dict[str, Changes]]]


def _add(trees: Trees, lock: Lock, name: str, tree: str, parts: _Parts, found: SeriesByComponent) -> str:
    """Add the patches of one component to `found`. Returns its tree after them."""
    series: list[SeriesPatch] = []
    locked_before = _trees_before(trees, lock, name, tree)
    for step, changes in parts:
        own = changes.get(name, {})
        locked = step.laid.patch if step.laid is not None and step.laid.component == name else None
        before = "" if locked is None else locked_before[locked.name]
        if locked is not None and _WHOLE not in changes:
            own = {**_unlaid_changes(trees, lock, name, before, locked.tree), **own}
        after = trees.put_all(tree, own.items())
        if after != tree:
            slug = _slug(step, name) if locked is None else slug_of_file(locked.file)
            series.append(SeriesPatch(name, slug, tree, after, step, locked, before))
        tree = after
    found.patches[name] = series
    return tree


def _trees_before(trees: Trees, lock: Lock, name: str, tree: str) -> dict[str, str]:
    """Return the tree before each locked patch of a component, by its name."""
    patches = lock.components[name].patches if name in lock.components else lock.tree_patches
    if name == TREE and patches:
        tree, _ = assemble.assemble(trees, lock, with_tree_patches=False)
    return dict(zip((p.name for p in patches), (tree, *(p.tree for p in patches)), strict=False))


def _unlaid_changes(trees: Trees, lock: Lock, name: str, before: str, after: str) -> Changes:
    """Return a locked patch's changes to files outside the code tree."""
    component = lock.components.get(name)
    changed = () if component is None else trees.changed(before, after)
    return {
        path: entry for path, _, entry in changed if component and not assemble.code_paths(component, path)
    }


def _slug(step: PatchCommit, name: str) -> str:
    """Return the slug of a new patch of a component."""
    for value in trailers(step.commit.message, "Patch"):
        component, _, slug = value.partition("/")
        if component == name and SLUG.fullmatch(slug):
            return slug
    if step.laid is not None and step.laid.patch is not None:
        return slug_of_file(step.laid.patch.file)  # a patch that now changes another component, too
    return slug_of_subject(step.commit.subject) or f"commit-{step.commit.id[:12]}"


def _note(step: PatchCommit, changes: Mapping[str, Changes], found: SeriesByComponent) -> None:
    """Note a commit that becomes several patches or none. Raises PatchError for a trailer that fits none of them."""
    if step.laid is not None and step.commit.id == step.laid.commit.id:
        return
    if not changes:
        found.empty.append(str(step.commit))
    if len(changes) > 1:
        found.split.append(SplitCommit(str(step.commit), list(changes)))
    for value in trailers(step.commit.message, "Patch") if step.laid is None else ():
        component, _, slug = value.partition("/")
        if component not in changes or not SLUG.fullmatch(slug):
            raise PatchError(
                f"`Patch: {value}` fits no patch of its commit",
                where=str(step.commit),
                why=f"The commit changes {', '.join(changes) or 'nothing'}; a trailer is COMPONENT/slug, a slug "
                "lower-case words and dashes.",
                hint="Correct the trailer: git commit --amend, or git rebase -i.",
            )


def _add_checkout(
    lock: Lock, code: WorkspaceHistory, name: str, history: WorkspaceHistory, found: SeriesByComponent
) -> None:
    """Replace a component's patches from `code` by those from its full checkout, which has all of its files."""
    component = lock.components[name]
    in_code = [patch.locked for patch in found.patches[name] if patch.is_unchanged]
    changed = [path for path, _, _ in history.trees.changed(component.result, history.commits[-1].tree)]
    shared = [path for path in changed if assemble.code_paths(component, path)]
    if in_code != list(component.patches) or len(in_code) < len(found.patches[name]):
        raise WorkspaceError(
            f"Both code and {history.root} have commits that change {name}",
            why="The patches of a component are one series.",
            hint=f"Make all of its changes in {history.root}, or all in code.",
        )
    if shared and code.commits[-1].tree != lock.tree:
        raise WorkspaceError(
            f"Commits of {history.root} change files that code has, too, and code has commits of its own",
            why="The next setup could assemble neither tree as you have it:\n" + "\n".join(shared[:10]),
            hint="Make these changes in code, or export, lock and set up the commits of one of the two first.",
        )
    parts: _Parts = []
    for step in steps_of(history, lock):
        changes = {path: entry for path, _, entry in code.trees.changed(step.before, step.commit.tree)}
        _note(step, {name: changes} if changes else {}, found)
        parts.append((step, {name: changes, _WHOLE: {}}))
    _add(code.trees, lock, name, assemble.merged(component), parts, found)


def _other_tree(trees: Trees, root: str, wanted: str) -> WorkspaceError:
    paths = [path for path, _, _ in trees.changed(root, wanted)]
    return WorkspaceError(
        "The patches would not give the tree of your last commit",
        why="\n".join([f"{len(paths)} files would differ, such as", *paths[:10]]),
        hint="Nothing was written. Please report this as a bug, with `git log --stat` of these commits.",
    )
