"""One patch onto one tree, with `git apply` in a temporary index: it applies exactly, or nothing happens.

Every hunk is looked up first, because git alone says too little and does too much: it moved a hunk by
200 lines between twin functions without a word. And its result is held against our own applier's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from npu_rl.compose.trees import Trees
from npu_rl.errors import PatchError
from npu_rl.git import Git, GitError
from npu_rl.objects import SYMLINK
from npu_rl.patches.match import Kind, apply_exact, explain, locate
from npu_rl.patches.model import FilePatch, Patch

_REFRESH = "Refresh the patch for this pin. Nothing was changed."
_REAL_FILE = "Patch the file the link leads to. Nothing was changed."


@dataclass(frozen=True)
class Applied:
    """The new tree; `offsets`: hunk number to lines it moved, for those that did."""

    tree: str
    offsets: dict[str, int] = field(default_factory=dict)


def apply_patch(
    trees: Trees,
    tree: str,
    data: bytes,
    patch: Patch,
    *,
    component: str,
    taken: Sequence[str] = (".",),
    exclude: Sequence[str] = (),
    strip: int = 1,
    directory: str = "",
    accept: bool = False,
) -> Applied:
    """Apply `patch` (parsed from `data`) to a tree.

    taken: upstream paths the component takes; a file outside them is refused.
    accept: take hunks that apply at one other place; the offsets are returned.
    Raises PatchError that names the hunk, shows expected and found lines, and the nearest place.
    """
    where = f"{component}, patch {patch.name}"
    _check_taken(patch, taken, where)
    before = {file.path: _content(trees, tree, file, where) for file in patch.files}
    offsets = _offsets(patch, before, accept, where, component)
    after = {
        file.path: apply_exact(before[file.path], file, name=patch.name, offsets=offsets)
        for file in patch.files
    }
    result = _git_apply(trees, tree, data, where, exclude, strip, directory)
    _check_result(trees, tree, result, after, where)
    return Applied(result, {str(number): moved for number, moved in offsets.items()})


def _offsets(
    patch: Patch, before: Mapping[str, bytes | None], accept: bool, where: str, component: str
) -> dict[int, int]:
    """How far each hunk moves, for those that do. Raises PatchError for all that do not apply."""
    offsets: dict[int, int] = {}
    problems: list[str] = []
    kinds: set[Kind] = set()
    for file in patch.files:
        content = before[file.path]
        if content is None:
            continue
        for hunk in file.hunks:
            location = locate(content, hunk)
            if location.kind == "offset" and accept:
                offsets[hunk.number] = location.offset
            elif location.kind != "exact":
                kinds.add(location.kind)
                said = explain(content, hunk, location)
                problems.append(f"hunk {hunk.number} of {file.path} (patch line {hunk.line}):\n{said}")
    if problems:
        raise PatchError(
            f"{patch.name} does not apply to {component}",
            where=where,
            why="\n".join(problems),
            hint=_next(kinds) + " Nothing was changed.",
        )
    return offsets


def _next(kinds: set[Kind]) -> str:
    if kinds == {"already_applied"}:
        return "The change is upstream at this pin: drop the patch."
    if kinds == {"offset"}:
        return "Refresh the patch for this pin, or write `offset: allow` to take it at that line."
    return "The pin or the patch has changed: refresh the patch for this pin."


def _check_result(
    trees: Trees, tree: str, result: str, after: Mapping[str, bytes | None], where: str
) -> None:
    """git and our own applier must agree: git may choose between twin places without a word."""
    touched = {path for path, _, _ in trees.changed(tree, result)}
    odd = touched ^ set(after)
    for path, content in after.items():
        entry = trees.find(result, path)
        if (None if entry is None else trees.blob(entry.oid)) != content:
            odd.add(path)
    if odd:
        raise PatchError(
            "git apply did something else than the patch says",
            where=where,
            why=", ".join(sorted(odd)),
            hint="Please report this with the patch and your git version. Nothing was changed.",
        )


def _check_taken(patch: Patch, taken: Sequence[str], where: str) -> None:
    outside = [
        file.path
        for file in patch.files
        if not any(t == "." or file.path == t or file.path.startswith(t + "/") for t in taken)
    ]
    if outside:
        raise PatchError(
            f"{patch.name} touches paths outside what is taken",
            where=where,
            why=", ".join(outside),
            hint="Take those paths, name them under `exclude:` of the patch, or set `checkout: full`.",
        )


def _content(trees: Trees, tree: str, file: FilePatch, where: str) -> bytes | None:
    """The file before the patch; None for one that the patch creates. Raises PatchError for any other state."""

    def refused(what: str, why: str | None = None, hint: str = _REFRESH) -> PatchError:
        return PatchError(f"{file.path} {what}", where=f"{where}, line {file.line}", why=why, hint=hint)

    folders = file.path.split("/")[:-1]
    for depth in range(1, len(folders) + 1):
        above = trees.find(tree, "/".join(folders[:depth]))
        if above is not None and above.mode == SYMLINK:
            link = "/".join(folders[:depth])
            raise refused("would be written through a symbolic link", f"{link} is one.", _REAL_FILE)
    entry = trees.find(tree, file.path)
    if file.old_path is None:
        if entry is not None:
            raise refused("is to be created but is there already", hint="Drop the patch, or refresh it.")
        return None
    if entry is None or entry.is_tree:
        raise refused(
            "is not in the tree",
            "The file the patch changes was moved or removed upstream, or `strip:` is wrong.",
        )
    if entry.mode == SYMLINK:
        raise refused("is a symbolic link; patches change files only", hint=_REAL_FILE)
    return trees.blob(entry.oid)


def _git_apply(
    trees: Trees, tree: str, data: bytes, where: str, exclude: Sequence[str], strip: int, directory: str
) -> str:
    repository = trees.repository
    index = repository.git_dir / f"index-{os.urandom(6).hex()}"
    temporary = Git(repository.git_dir, index=index, alternates=repository.alternates)
    options = [f"-p{strip}", "--cached", "--whitespace=nowarn"]
    options += [f"--directory={directory}"] if directory else []
    options += [f"--exclude={glob}" for glob in exclude]
    try:
        temporary.run("read-tree", tree)
        temporary.run("apply", *options, "-", input=data)
        return temporary.text("write-tree")
    except GitError as error:
        raise PatchError(
            "git apply refused the patch",
            where=where,
            why=error.stderr,
            hint=_REFRESH,
        ) from error
    finally:
        index.unlink(missing_ok=True)
