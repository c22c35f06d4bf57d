"""What a manifest takes of a component, looked up in its tree; submodules included.

A path counts as it is after the merges: a pull request may bring a folder that the pin does not have. What only
patches come from is *held*: delivered as what is taken is, and not laid into the code tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from npu_rl.compose.git_trees import Trees
from npu_rl.errors import LockError
from npu_rl.git.objects import GITLINK, SYMLINK, TREE, Entry
from npu_rl.lock import lock_model

if TYPE_CHECKING:
    from npu_rl.manifest.schema import Component as Spec
    from npu_rl.manifest.schema import Manifest

Parts = list[tuple[str, Entry]]

_GLOB = re.compile(r"[*?\[]")
_LIST_SUBMODULE = "List it under `submodules:` with its URL and commit id, or do not take that path."


def held_paths(manifest: Manifest, name: str) -> tuple[str, ...]:
    """Paths of a component that patches come from, and that it does not take."""
    spec = manifest.components[name]
    if spec.checkout == "full":
        return ()
    holders = [manifest.tree.patches, *(c.patches for c in manifest.components.values())]
    paths = dict.fromkeys(entry.path for entries in holders for entry in entries if entry.from_ == name)
    return tuple(path for path in paths if not is_inside(path, [t.from_ for t in spec.take]))


def is_inside(path: str, taken: Iterable[str]) -> bool:
    """Whether a path is one of those taken, or below one."""
    return any(t == "." or path == t or path.startswith(t + "/") for t in taken)


def look_up(trees: Trees, name: str, spec: Spec, root: str) -> tuple[lock_model.LockedTake, ...]:
    """The takes with what is there at the pin.

    Raises LockError for a path that isn't there, unless a merge may still bring it (see `check_merged_takes`), or is
    no file or folder.
    """
    takes = []
    for take in spec.take:
        entry = trees.find(root, take.from_)
        if entry is None and not spec.merge:
            raise _missing_path(trees, name, take.from_, root)
        if entry is None:
            takes.append(lock_model.LockedTake(take.from_, take.to))
            continue
        if entry.mode == GITLINK and take.from_ not in spec.submodules:
            raise LockError(
                f"{take.from_} of {name} is a submodule that the manifest does not list", hint=_LIST_SUBMODULE
            )
        _check_kind(name, take.from_, take.to, entry)
        takes.append(lock_model.LockedTake(take.from_, take.to, entry.mode, entry.oid))
    return tuple(takes)


def look_up_held(trees: Trees, name: str, paths: Iterable[str], root: str) -> tuple[lock_model.HeldPath, ...]:
    """The held paths with what is there at the pin. Raises LockError for one that isn't, or is no file or folder."""
    held = []
    for path in paths:
        entry = trees.find(root, path)
        if entry is None:
            raise _missing_path(trees, name, path, root, key="path: ... from:")
        _check_kind(name, path, None, entry)
        held.append(lock_model.HeldPath(path, entry.mode, entry.oid))
    return tuple(held)


def check_merged_takes(
    trees: Trees, name: str, takes: Sequence[lock_model.LockedTake], root: str, merged: str
) -> None:
    """Raise LockError for a take that neither the pin (`root`) nor the merges (`merged`) have as it must be."""
    for take in takes:
        if take.entry is not None:
            continue
        entry = trees.find(merged, take.path)
        if entry is None:
            raise _missing_path(trees, name, take.path, root)
        _check_kind(name, take.path, take.to, entry)


def _check_kind(name: str, path: str, to: str | None, entry: Entry) -> None:
    if entry.mode == SYMLINK:
        raise LockError(f"{path} of {name} is a symbolic link", hint="Take the path it points to.")
    if to == "." and entry.mode not in (TREE, GITLINK):
        raise LockError(
            f"{path} of {name} is a file, and `to: .` needs a folder", hint="Name the file in `to:`."
        )


def _missing_path(trees: Trees, name: str, path: str, root: str, key: str = "take:") -> LockError:
    """The error for a path that isn't there: it says what is, in the nearest folder above."""
    above, entry = path, None
    while entry is None:
        above = above.rpartition("/")[0] or "."
        entry = trees.find(root, above)
    hint = f"Correct `{key}`."
    if _GLOB.search(path):
        hint = f"`{key}` does not support patterns: name a folder, or each file."
    if entry.mode == GITLINK:
        why, hint = f"{above} is a submodule.", f"Take all of {above}, and list it under `submodules:`."
    elif entry.is_tree:
        names = sorted(trees.entries(entry.oid))
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        where = "Its root" if above == "." else above
        why = f"{where} contains: {', '.join(names[:20])}{more}" if names else f"{where} is empty."
    else:
        why = f"{above} is a file."
    return LockError(f"{name} has no path {path} at this pin", why=why, hint=hint)


def parts_of(trees: Trees, spec: Spec, held: Iterable[str], root: str) -> Parts:
    """What is taken and held of a commit that need not have all of it: a side of a merge."""
    if spec.checkout == "full":
        return [(".", Entry(TREE, root))]
    found = [(path, trees.find(root, path)) for path in (*(t.from_ for t in spec.take), *held)]
    return [(path, entry) for path, entry in found if entry is not None]


def gitlinks(trees: Trees, tree: str) -> dict[str, str]:
    """Path to commit id of every submodule in a tree."""
    return {path: entry.oid for path, entry in trees.files(tree) if entry.mode == GITLINK}


def check_gitlinks(name: str, links: dict[str, str], modules: Sequence[lock_model.LockedSubmodule]) -> None:
    """Every gitlink in what is taken must be named, and every name must be one. Raises LockError."""
    named = {module.path for module in modules}
    unnamed = sorted(set(links) - named)
    if unnamed:
        raise LockError(
            f"{name} has submodules that the manifest does not list",
            why=", ".join(unnamed),
            hint=_LIST_SUBMODULE,
        )
    wrong = sorted(named - set(links))
    if wrong:
        raise LockError(
            f"{name} has no submodule at {', '.join(wrong)} in the taken paths",
            why=f"Submodules in the taken paths: {', '.join(sorted(links)) or 'none'}",
            hint="Correct `submodules:`.",
        )


def modules_in(trees: Trees, tree: str, modules: Sequence[lock_model.LockedSubmodule]) -> str:
    """The tree with the named submodules where it has gitlinks."""
    for module in modules:
        found = trees.find(tree, module.path)
        if found is not None and found.mode == GITLINK:
            tree = trees.put(tree, module.path, Entry(TREE, module.root))
    return tree
