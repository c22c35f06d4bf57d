"""The summary of a stack: each step with the files that it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.stack.compose.assemble import code_paths
from npu_rl.stack.git.command import Git, ObjectReader
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.summary.file_changes import FileChange, file_changes
from npu_rl.workspace.summary.rebindings import Rebinding, rebindings_in_tree
from npu_rl.workspace.summary.stack_steps import Step, stack_steps


@dataclass(frozen=True)
class StepSummary:
    """A step and its files. `paths` has each file's path in the code tree, if the tree contains it."""

    step: Step
    files: tuple[FileChange, ...]
    paths: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class StackSummary:
    """The changes by the steps of a lock.

    Attributes:
        tree: Id of the code tree.
        import_time: What packages of the code tree rebind in others; None if nobody asked.
    """

    manifest: str
    tree: str
    steps: tuple[StepSummary, ...]
    import_time: tuple[Rebinding, ...] | None = None


def stack_summary(
    lock: Lock,
    repository: Git,
    texts: Mapping[str, str],
    patch: str | None = None,
    *,
    import_time: bool = False,
) -> StackSummary:
    """Return the changes of each step of a lock, from the trees before and after it.

    Args:
        repository: Has the objects of the lock's trees.
        texts: Patch texts by SHA-256.
        patch: Only this patch, or pull request.
        import_time: Whether to read all Python of the tree for what it rebinds when it is imported.

    Raises:
        PatchError: If the lock has no such patch.
        GitError: If an object is missing.
    """
    unpatched = repository.text("rev-parse", f"{lock.commit}~{len(lock.tree_patches)}^{{tree}}")
    steps = list(stack_steps(lock, unpatched, texts))
    if patch is not None:
        steps = _named(steps, patch, lock.manifest)
    with ObjectReader(repository) as reader:

        def blob(oid: str) -> bytes:
            return reader.read(oid)[1]

        found = []
        for step in steps:
            files = tuple(file_changes(repository, blob, step.before, step.after))
            found.append(StepSummary(step, files, {one.path: _laid(lock, step, one.path) for one in files}))
    rebindings = tuple(rebindings_in_tree(repository, lock.tree)) if import_time else None
    return StackSummary(lock.manifest, lock.tree, tuple(found), rebindings)


def _named(steps: Sequence[Step], name: str, manifest: str) -> list[Step]:
    wanted = name.removesuffix(".patch")
    found = [step for step in steps if wanted in (step.name, step.name.removeprefix("refs/"))]
    if not found:
        names = [step.name for step in steps]
        raise PatchError(
            f"{manifest} has no patch or pull request {name!r}{did_you_mean(wanted, names)}",
            hint=f"Name one of these: {', '.join(names)}" if names else None,
        )
    return found


def _laid(lock: Lock, step: Step, path: str) -> tuple[str, ...]:
    """Return the path of a step's file in the code tree."""
    return (path,) if step.component is None else tuple(code_paths(lock.components[step.component], path))
