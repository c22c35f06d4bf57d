"""Applying a patch to a tree, exactly or not at all, with `git apply` in a temporary index.

Every hunk is located first, because git alone reports too little and accepts too much: it moved a hunk by 200 lines
between two similar functions without a message. Its result is compared with that of npu-rl's own applier.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace

from npu_rl.common.disk import remove_tree
from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import SYMLINK, is_inside
from npu_rl.stack.hunks.hunk_match import apply_exact, explain, locate, misplaced
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import FilePatch, Patch

_REFRESH = "Refresh the patch for this pin. Nothing was changed."
_MAXIMUM_REPORTED = 20  # failing hunks; finding the closest position of each takes up to 0.1 s
_REAL_FILE = "Patch the file that the link points to. Nothing was changed."


def parse_locked(locked: LockedPatch, data: bytes) -> Patch:
    """Parse a locked patch from its text. Raises PatchError with the name of its file."""
    parsed = parse_patch(
        locked.applied_text(data),
        name=locked.file,
        strip=locked.strip,
        directory=locked.directory,
    )
    return replace(parsed, name=locked.name)


def run_patch(
    trees: Trees,
    tree: str,
    locked: LockedPatch,
    data: bytes,
    component: str,
    taken: Collection[str],
    *,
    headings: bool = True,
) -> tuple[Patch, str]:
    """Parse one patch from the bytes of its file, and apply it to a tree. Returns it and the new tree.

    Args:
        taken: Upstream paths the component takes; a file outside them is an error.
        headings: Whether a hunk's position must also match the heading after its second @@. Not for patches of a lock:
            its trees prove the result, even if a later npu-rl would reject the position.

    Raises:
        PatchError: A hunk does not apply; it shows the expected and found lines, and the closest position.
    """
    patch = parse_locked(locked, data)
    where = f"{component}, patch {patch.name}"
    _check_taken(patch, taken, where)
    before = {file.path: _content(trees, tree, file, where) for file in patch.files}
    _check_places(patch, before, where, component, headings=headings)
    after = {file.path: apply_exact(before[file.path], file, name=patch.name) for file in patch.files}
    result = _git_apply(trees, tree, locked, data, where)
    _check_result(trees, tree, result, after, where)
    return patch, result


def _check_places(
    patch: Patch, before: Mapping[str, bytes | None], where: str, component: str, *, headings: bool
) -> None:
    """Raise PatchError with all hunks that do not apply."""
    problems: list[str] = []
    unchecked = 0
    kinds: set[str] = set()
    for file in patch.files:
        content = before[file.path]
        if content is None:
            continue
        for hunk in file.hunks:
            if len(problems) == _MAXIMUM_REPORTED:
                unchecked += 1
                continue
            location = locate(content, hunk)
            kind: str = location.kind
            explanation = explain(content, hunk, location) if kind != "exact" else None
            if kind == "exact" and headings:
                kind, explanation = "heading", misplaced(content, hunk, hunk.old_index + 1, file.path)
            if explanation is None:
                continue
            kinds.add(kind)
            problems.append(f"hunk {hunk.number} of {file.path} (patch line {hunk.line}):\n{explanation}")
    if unchecked:
        problems.append(f"and {unchecked} more hunks, which were not checked")
    if problems:
        raise PatchError(
            f"{patch.name} does not apply to {component}",
            where=where,
            why="\n".join(problems),
            hint=_hint(kinds) + " Nothing was changed.",
        )


def _hint(kinds: set[str]) -> str:
    if kinds == {"already_applied"}:
        return "The change is already upstream at this pin: remove the patch."
    if kinds == {"heading"}:
        return "Refresh the patch for this pin. If the place is right, remove the heading after the hunk's second @@."
    return "The pin or the patch has changed: refresh the patch for this pin."


def _check_result(
    trees: Trees, tree: str, result: str, after: Mapping[str, bytes | None], where: str
) -> None:
    """Raise PatchError if git and npu-rl's applier differ: git may silently choose between identical places."""
    touched = {path for path, _, _ in trees.changed(tree, result)}
    differing = touched ^ set(after)
    for path, content in after.items():
        entry = trees.find(result, path)
        if (None if entry is None else trees.blob(entry.oid)) != content:
            differing.add(path)
    if differing:
        raise PatchError(
            "git apply and npu-rl applied the patch differently",
            where=where,
            why=", ".join(sorted(differing)),
            hint="Please report this as a bug, with the patch and your git version. Nothing was changed.",
        )


def _check_taken(patch: Patch, taken: Collection[str], where: str) -> None:
    outside = [file.path for file in patch.files if not is_inside(file.path, taken)]
    if outside:
        raise PatchError(
            f"{patch.name} changes paths that the component does not take",
            where=where,
            why=", ".join(outside),
            hint="Add those paths to `take:`, take them out of the patch, or set `checkout: full`; "
            "list a patch with paths of the code tree under `tree: {patches: [...]}`.",
        )


def _content(trees: Trees, tree: str, file: FilePatch, where: str) -> bytes | None:
    """Return the file before the patch; None if the patch creates it. Raises PatchError for any other state."""

    def refused(what: str, why: str | None = None, hint: str = _REFRESH) -> PatchError:
        return PatchError(f"{file.path} {what}", where=f"{where}, line {file.line}", why=why, hint=hint)

    entry = None
    for depth, entry in enumerate(trees.entries_on_path(tree, file.path), start=1):
        link = "/".join(file.path.split("/")[:depth]) if entry and entry.mode == SYMLINK else file.path
        if link != file.path:
            raise refused(
                "would be written through a symbolic link", f"{link} is a symbolic link.", _REAL_FILE
            )
    if file.old_path is None:
        if entry is not None:
            raise refused(
                "is created by the patch but already exists",
                hint="Remove the patch, or refresh it for this pin.",
            )
        return None
    if entry is None or entry.is_tree:
        raise refused("is not in the tree", "The file was moved or removed upstream, or `strip:` is wrong.")
    if entry.mode == SYMLINK:
        raise refused("is a symbolic link, and a patch can change only files", hint=_REAL_FILE)
    return trees.blob(entry.oid)


def _git_apply(trees: Trees, tree: str, locked: LockedPatch, data: bytes, where: str) -> str:
    repository = trees.repository
    index = repository.git_dir / f"index-{os.urandom(6).hex()}"
    temporary = Git(repository.git_dir, index=index, alternates=repository.alternates)
    options = [f"-p{locked.strip}", "--cached", "--whitespace=nowarn"]
    options += [f"--directory={locked.directory}"] if locked.directory else []
    try:
        temporary.run("read-tree", tree)
        temporary.run("apply", *options, "-", input=locked.applied_text(data))
        return temporary.text("write-tree")
    except GitError as error:
        raise PatchError(
            "git apply rejected the patch", where=where, why=error.stderr, hint=_REFRESH
        ) from error
    finally:
        remove_tree(index)
