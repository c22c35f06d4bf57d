"""What a manifest takes of a component, looked up in its tree at the pin; submodules included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from npu_rl.compose.trees import Trees, taken_tree
from npu_rl.errors import LockError
from npu_rl.manifest import lock
from npu_rl.objects import GITLINK, SYMLINK, TREE, Entry

if TYPE_CHECKING:
    from npu_rl.manifest.schema import Component as Spec

Parts = list[tuple[str, Entry]]

_NAME_IT = "Name it under `submodules:` with its URL and commit id, or do not take that path."


def look_up(trees: Trees, name: str, spec: Spec, root: str) -> tuple[lock.Take, ...]:
    """The takes with what is there. Raises LockError for a path that isn't, or is no file or folder."""
    takes = []
    for take in spec.take:
        entry = trees.find(root, take.from_)
        if entry is None:
            raise _absent(trees, name, take.from_, root)
        if entry.mode == SYMLINK:
            raise LockError(f"{take.from_} of {name} is a symbolic link", hint="Take what it leads to.")
        if entry.mode == GITLINK and take.from_ not in spec.submodules:
            raise LockError(
                f"{take.from_} of {name} is a submodule that the manifest does not name", hint=_NAME_IT
            )
        if take.to == "." and entry.mode not in (TREE, GITLINK):
            raise LockError(f"{take.from_} of {name} is a file", hint="Give it a name in `to:`.")
        takes.append(lock.Take(take.from_, take.to, entry.mode, entry.oid))
    return tuple(takes)


def _absent(trees: Trees, name: str, path: str, root: str) -> LockError:
    """The error for a path that isn't there: it says what is, in the nearest folder above."""
    above, entry = path, None
    while entry is None:
        above = above.rpartition("/")[0] or "."
        entry = trees.find(root, above)
    if entry.mode == GITLINK:
        why, hint = f"{above} is a submodule.", f"Take {above} as a whole, and name it under `submodules:`."
    elif entry.is_tree:
        there = sorted(trees.entries(entry.oid))
        more = f" and {len(there) - 20} more" if len(there) > 20 else ""
        where = "its root" if above == "." else above
        why, hint = f"In {where} there is: {', '.join(there[:20])}{more}", "Mend `take:`."
    else:
        why, hint = f"{above} is a file.", "Mend `take:`."
    return LockError(f"{name} has no {path} at this pin", why=why, hint=hint)


def parts_of(trees: Trees, spec: Spec, root: str) -> Parts:
    """What is taken of a commit that need not have all of it: a side of a merge."""
    if spec.checkout == "full":
        return [(".", Entry(TREE, root))]
    found = [(t.from_, trees.find(root, t.from_)) for t in spec.take]
    return [(path, entry) for path, entry in found if entry is not None]


def taken(trees: Trees, takes: Sequence[lock.Take]) -> str:
    """The tree of the takes, at the paths they have upstream."""
    return taken_tree(trees, [(t.path, t.entry) for t in takes])


def gitlinks(trees: Trees, tree: str) -> dict[str, str]:
    """Path to commit id of every submodule in a tree."""
    return {path: entry.oid for path, entry in trees.files(tree) if entry.mode == GITLINK}


def check_gitlinks(name: str, links: dict[str, str], modules: Sequence[lock.Submodule]) -> None:
    """Every gitlink in what is taken must be named, and every name must be one. Raises LockError."""
    named = {module.path for module in modules}
    unnamed = sorted(set(links) - named)
    if unnamed:
        raise LockError(
            f"{name} has submodules that the manifest does not name", why=", ".join(unnamed), hint=_NAME_IT
        )
    wrong = sorted(named - set(links))
    if wrong:
        raise LockError(
            f"{name} has no submodule at {', '.join(wrong)} in what is taken",
            why=f"Its submodules there: {', '.join(sorted(links)) or 'none'}",
            hint="Mend `submodules:`.",
        )


def modules_in(trees: Trees, tree: str, modules: Sequence[lock.Submodule]) -> str:
    """The tree with the named submodules where it has gitlinks."""
    for module in modules:
        found = trees.find(tree, module.path)
        if found is not None and found.mode == GITLINK:
            tree = trees.put(tree, module.path, Entry(TREE, module.root))
    return tree
