"""One patch onto one tree, with `git apply` in a temporary index: it applies exactly, or nothing happens.

Every hunk is looked up first, because git alone says too little and does too much: it moved a hunk by
200 lines between twin functions without a word.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from npu_rl.compose.trees import Trees
from npu_rl.errors import PatchError
from npu_rl.git import Git, GitError
from npu_rl.objects import SYMLINK
from npu_rl.patches.match import explain, locate
from npu_rl.patches.model import FilePatch, Hunk, Patch


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
    offsets: dict[str, int] = {}
    problems: list[str] = []
    for file in patch.files:
        content = _content(trees, tree, file, where)
        for hunk in file.hunks:
            found = _find(content, file, hunk, accept)
            if isinstance(found, str):
                problems.append(found)
            elif found:
                offsets[str(hunk.number)] = found
    if problems:
        raise PatchError(
            f"{patch.name} does not apply to {component}",
            where=where,
            why="\n".join(problems),
            hint="The pin or the patch has changed: refresh the patch for this pin. Nothing was changed.",
        )
    result = _git_apply(trees, tree, data, where, exclude, strip, directory)
    touched = {path for path, _, _ in trees.changed(tree, result)}
    named = {file.path for file in patch.files}
    if touched != named:
        odd = ", ".join(sorted(touched ^ named))
        raise PatchError(f"{patch.name} did not change just the files it names", where=where, why=odd)
    return Applied(result, offsets)


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
    entry = trees.find(tree, file.path)
    folders = file.path.split("/")[:-1]
    for depth in range(1, len(folders) + 1):
        above = trees.find(tree, "/".join(folders[:depth]))
        if above is not None and above.mode == SYMLINK:
            raise PatchError(f"{file.path} would be written through a symbolic link", where=where)
    if file.old_path is None:
        if entry is not None:
            hint = "Drop the patch, or refresh it." if not entry.is_tree else None
            raise PatchError(f"{file.path} is to be created but is there already", where=where, hint=hint)
        return None
    if entry is None or entry.is_tree:
        raise PatchError(
            f"{file.path} is not in the tree",
            where=where,
            why="The file the patch changes was moved or removed upstream, or `strip:` is wrong.",
        )
    if entry.mode == SYMLINK:
        raise PatchError(f"{file.path} is a symbolic link; patches change files only", where=where)
    return trees.blob(entry.oid)


def _find(content: bytes | None, file: FilePatch, hunk: Hunk, accept: bool) -> int | str:
    """The offset at which a hunk applies (0 as it should), or what is wrong, in words."""
    if content is None:
        return 0
    location = locate(content, hunk)
    if location.kind == "exact":
        return 0
    if location.kind == "offset" and accept:
        return location.offset
    return f"hunk {hunk.number} of {file.path} (patch line {hunk.line}):\n{explain(content, hunk, location)}"


def _git_apply(
    trees: Trees, tree: str, data: bytes, where: str, exclude: Sequence[str], strip: int, directory: str
) -> str:
    repository = trees.repository
    index = repository.git_dir / f"index-{secrets.token_hex(6)}"
    temporary = Git(repository.git_dir, index=index, alternates=repository.alternates)
    options = [f"-p{strip}", "--cached", "--whitespace=nowarn"]
    options += [f"--directory={directory}"] if directory else []
    options += [f"--exclude={glob}" for glob in exclude]
    try:
        temporary.run("read-tree", tree)
        temporary.run("apply", *options, "-", input=data)
        return temporary.text("write-tree")
    except GitError as error:
        raise PatchError("git apply refused the patch", where=where, why=error.stderr) from error
    finally:
        index.unlink(missing_ok=True)
