"""Applying a patch to a tree, exactly or not at all, with `git apply` in a temporary index.

Every hunk is located first, because git alone reports too little and accepts too much: it moved a hunk by 200 lines
between two similar functions without a message. Its result is compared with that of npu-rl's own applier.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from npu_rl.common.disk import remove_tree
from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import SYMLINK, is_inside
from npu_rl.stack.hunks.hunk_headings import misplaced, moved_to_twin
from npu_rl.stack.hunks.hunk_match import Kind, Location, apply_exact, explain, locate
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, Patch

_REFRESH = "Refresh the patch for this pin. Nothing was changed."
_MAXIMUM_REPORTED = 20  # failing hunks; finding the closest position of each takes up to 0.1 s
_REAL_FILE = "Patch the file that the link points to. Nothing was changed."


@dataclass(frozen=True)
class Tolerance:
    """Limits on where a hunk may apply.

    Attributes:
        offset: By how many lines it may move (0: none, None: any number).
        headings: Whether its position must also match the heading after the second @@.
    """

    offset: int | None = 0
    headings: bool = True


AS_LOCKED = Tolerance(None, headings=False)
"""For patches of a lock: its trees prove the result, even if a later npu-rl would reject the position."""


@dataclass(frozen=True)
class Applied:
    """The new tree, and the offset in lines of each moved hunk, by hunk number."""

    tree: str
    offsets: dict[str, int] = field(default_factory=dict)


def parse_locked(locked: LockedPatch, data: bytes) -> Patch:
    """Parse a locked patch from its text. Raises PatchError with the name of its file."""
    parsed = parse_patch(
        locked.applied_text(data),
        name=locked.file,
        strip=locked.strip,
        directory=locked.directory,
        exclude=locked.exclude,
    )
    return replace(parsed, name=locked.name)


def run_patch(
    trees: Trees,
    tree: str,
    locked: LockedPatch,
    data: bytes,
    component: str,
    taken: Collection[str],
    tolerance: Tolerance,
) -> tuple[Patch, Applied]:
    """Parse one patch from the bytes of its file, and apply it to a tree.

    Args:
        taken: Upstream paths the component takes; a file outside them is an error.
        tolerance: How far hunks may move if they apply at exactly one other position.

    Raises:
        PatchError: A hunk does not apply; it shows the expected and found lines, and the closest position.
    """
    patch = parse_locked(locked, data)
    where = f"{component}, patch {patch.name}"
    _check_taken(patch, taken, where)
    before = {file.path: _content(trees, tree, file, where) for file in patch.files}
    offsets = _offsets(patch, before, tolerance, where, component)
    after = {
        file.path: apply_exact(before[file.path], file, name=patch.name, offsets=offsets)
        for file in patch.files
    }
    result = _git_apply(trees, tree, locked, data, where)
    _check_result(trees, tree, result, after, where)
    return patch, Applied(result, {str(number): moved for number, moved in offsets.items()})


def _offsets(
    patch: Patch, before: Mapping[str, bytes | None], tolerance: Tolerance, where: str, component: str
) -> dict[int, int]:
    """Return the offsets of the hunks that move. Raises PatchError with all hunks that do not apply."""
    offsets: dict[int, int] = {}
    problems: list[str] = []
    unchecked = 0
    kinds: set[Kind | _Misplacement] = set()
    for file in patch.files:
        content = before[file.path]
        if content is None:
            continue
        for hunk in file.hunks:
            if len(problems) == _MAXIMUM_REPORTED:
                unchecked += 1
                continue
            location = locate(content, hunk)
            reason = _why_not(content, hunk, location, tolerance, file.path)
            if reason is None:
                if location.offset:
                    offsets[hunk.number] = location.offset
                continue
            kind, explanation = reason
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
    return offsets


_Misplacement = Literal["heading", "twin", "too far"]


def _why_not(
    content: bytes, hunk: Hunk, location: Location, tolerance: Tolerance, path: str
) -> tuple[Kind | _Misplacement, str] | None:
    """Return why a hunk must not apply where it was found, as the kind of reason and its text; None if it may."""
    if location.kind not in ("exact", "offset") or (location.kind == "offset" and tolerance.offset == 0):
        return location.kind, explain(content, hunk, location)
    if tolerance.offset is not None and abs(location.offset) > tolerance.offset:
        bound = f"`offset: {tolerance.offset}` does not allow that."
        return "too far", f"{explain(content, hunk, location)} {bound}"
    if not tolerance.headings:
        return None
    assert location.line is not None
    elsewhere = misplaced(content, hunk, location.line, path)
    if elsewhere is not None:
        return "heading", elsewhere
    if location.offset and tolerance.offset is None:
        crossing = moved_to_twin(content, hunk, location.offset, path)
        if crossing is not None:
            return "twin", f"{crossing} `offset: {abs(location.offset)}` would allow it."
    return None


def _hint(kinds: set[Kind | _Misplacement]) -> str:
    if kinds == {"already_applied"}:
        return "The change is already upstream at this pin: remove the patch."
    if kinds == {"offset"}:
        return (
            "Refresh the patch for this pin, or set `offset: N` to let its hunks move by at most N lines "
            "(`offset: allow`: by any number)."
        )
    if kinds == {"too far"}:
        return "Review the new position, then refresh the patch for this pin or set a larger `offset:`."
    if kinds == {"twin"}:
        return "Review the new position, then refresh the patch for this pin or set `offset:` to that number."
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
            hint="Add those paths to `take:`, list them under `exclude:` of the patch, or set `checkout: full`.",
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
    options += [f"--exclude={glob}" for glob in locked.exclude]
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
