"""Taken paths of a component, looked up in its tree, submodules included.

A path may exist only after the merges: a pull request can add a folder that the pin does not have. A path that only
contains patches is *held*: it is delivered, but not part of the code tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import GITLINK, SYMLINK, TREE, Entry, is_inside
from npu_rl.stack.lock import lock_model

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Component as Spec
    from npu_rl.stack.manifest.schema import Manifest

Parts = list[tuple[str, Entry]]

_GLOB = re.compile(r"[*?\[]")
_LIST_SUBMODULE = (
    "List it under `submodules:` with its URL and commit id, leave it out with `other_submodules: skip`, or do not "
    "take that path."
)


def held_paths(manifest: Manifest, name: str) -> tuple[str, ...]:
    """Return the paths of a component that are delivered without being taken.

    They contain patches, or are submodules that are taken in part.
    """
    spec = manifest.components[name]
    if spec.checkout == "full":
        return ()
    holders = [manifest.tree.patches, *(c.patches for c in manifest.components.values())]
    files = [file for entries in holders for entry in entries for file in entry.component_files()]
    paths = dict.fromkeys(path for component, path in files if component == name)
    paths |= dict.fromkeys(filter(None, (submodule_around(take.from_, spec) for take in spec.take)))
    return tuple(path for path in paths if not is_inside(path, [t.from_ for t in spec.take]))


def submodule_around(path: str, spec: Spec) -> str | None:
    """Return the listed submodule that contains a path; None for any other path, such as the submodule itself."""
    return next((module for module in spec.submodules if path.startswith(module + "/")), None)


def look_up(trees: Trees, name: str, spec: Spec, root: str) -> tuple[lock_model.LockedTake, ...]:
    """Return the taken paths with their entries at the pin; a path in a submodule has no entry.

    Raises:
        LockError: For a path that is not a file or folder, or does not exist while there is no merge that could
            add it; `check_merged_takes` checks those after the merges.
    """
    takes = []
    for take in spec.take:
        inner = submodule_around(take.from_, spec) is not None  # `check_merged_takes` looks into it
        entry = None if inner else trees.find(root, take.from_)
        if entry is None and not inner and not spec.merge:
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
    """Return the held paths with their entries at the pin. Raises LockError for a path that is not a file or folder."""
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
    """Raise LockError for a taken path that is valid neither at the pin (`root`) nor after the merges (`merged`).

    merged: The taken paths after the merges, with the submodules in their places.
    """
    for take in takes:
        if take.entry is not None:
            continue
        entry = trees.find(merged, take.path)
        if entry is None:
            raise _missing_path(trees, name, take.path, _best_known(trees, take.path, root, merged))
        _check_kind(name, take.path, take.to, entry)


def _best_known(trees: Trees, path: str, root: str, merged: str) -> str:
    """Return the tree that contains more of a path: the pin's, or the merged one, which includes submodules."""
    above = path.rpartition("/")[0]
    return merged if above and trees.find(merged, above) is not None else root


def _check_kind(name: str, path: str, to: str | None, entry: Entry) -> None:
    if entry.mode == SYMLINK:
        raise LockError(f"{path} of {name} is a symbolic link", hint="Take the path it points to.")
    if to == "." and entry.mode not in (TREE, GITLINK):
        raise LockError(
            f"{path} of {name} is a file, and `to: .` needs a folder", hint="Name the file in `to:`."
        )


def _missing_path(trees: Trees, name: str, path: str, root: str, key: str = "take:") -> LockError:
    """Return the error for a missing path, which lists the content of the closest parent folder."""
    above, entry = path, None
    while entry is None:
        above = above.rpartition("/")[0] or "."
        entry = trees.find(root, above)
    hint = f"Correct `{key}`."
    if _GLOB.search(path):
        hint = f"`{key}` does not support patterns: name a folder, or each file."
    if entry.mode == GITLINK:
        why = f"{above} is a submodule."
        hint = f"List {above} under `submodules:` with its URL and commit id."
    elif entry.is_tree:
        names = sorted(trees.entries(entry.oid))
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        where = "Its root" if above == "." else above
        why = f"{where} contains: {', '.join(names[:20])}{more}" if names else f"{where} is empty."
    else:
        why = f"{above} is a file."
    return LockError(f"{name} has no path {path} at this pin", why=why, hint=hint)


def parts_of(trees: Trees, spec: Spec, held: Iterable[str], root: str) -> Parts:
    """Return the taken and held paths that exist on one side of a merge."""
    if spec.checkout == "full":
        return [(".", Entry(TREE, root))]
    found = [(path, trees.find(root, path)) for path in (*(t.from_ for t in spec.take), *held)]
    return [(path, entry) for path, entry in found if entry is not None]


def gitlinks(trees: Trees, tree: str) -> dict[str, str]:
    """Return the path and commit id of every submodule in a tree."""
    return {path: entry.oid for path, entry in trees.files(tree) if entry.mode == GITLINK}


def check_gitlinks(name: str, links: dict[str, str], modules: Sequence[lock_model.LockedSubmodule]) -> None:
    """Raise LockError unless the manifest lists exactly the gitlinks in the taken paths."""
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
    """Return the tree with the listed submodules in place of its gitlinks."""
    for module in modules:
        found = trees.find(tree, module.path)
        if found is not None and found.mode == GITLINK:
            tree = trees.put(tree, module.path, Entry(TREE, module.root))
    return tree


def without(trees: Trees, tree: str, paths: Iterable[str]) -> str:
    """Return the tree without these gitlinks, as far as it has them."""
    return trees.put_all(tree, [(path, None) for path in paths if trees.find(tree, path) is not None])
