"""Inclusion proofs in a lock: the pin's commit object and the trees on the path to each taken path.

Hashing them proves, without network access, that the commit contains these trees. `resolve` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.git.objects import TREE, Entry, MalformedObject, commit_tree_id, object_id, parse_tree
from npu_rl.stack.lock.lock_fields import Allowance, pack_bytes

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import LockedComponent


def pack(objects: Iterable[bytes]) -> tuple[str, ...]:
    """Return objects (the pin's commit, its root tree, other trees) as text for the lock."""
    return tuple(pack_bytes(data) for data in objects)


def check_proof(name: str, component: LockedComponent, where: str, allowance: Allowance) -> None:
    """Prove that the pin contains the taken paths. Raises LockError; `allowance` bounds the whole lock."""
    if component.pin is None:
        return
    try:
        why = _why_invalid(component, allowance)
    except (ValueError, MalformedObject) as error:  # no base64, an object cut short
        why = str(error)
    if why is not None:
        raise LockError(
            f"The inclusion proof of {name} in the lock is invalid",
            where=where,
            why=why,
            hint="Make a new lock: npu-rl lock --manifest M",
        )


def _why_invalid(component: LockedComponent, allowance: Allowance) -> str | None:
    objects = [allowance.unpack(text) for text in component.proof]
    if not objects or object_id("commit", objects[0]) != component.pin:
        return f"its first object is not the commit {component.pin}"
    trees = {object_id("tree", data): data for data in objects[1:]}
    root = commit_tree_id(objects[0])
    if component.root is not None and component.root != root:
        return f"the commit's tree is {root}, not {component.root}"
    if component.checkout == "full" and component.root is None:
        return "the lock has no root tree for `checkout: full`"
    for part in component.delivered_paths():
        found = _find(root, part.path, trees)
        if part.entry is None and not _is_proven_absent(root, part.path, trees):
            return f"{part.path} is recorded as absent, and the proof does not show that"
        if found != part.entry:
            return f"{part.path} is {found.oid if found else 'missing'}, not {part.id}"
    for module in component.submodules:
        commits = [allowance.unpack(text) for text in module.proof[:1]]
        if not commits or object_id("commit", commits[0]) != module.pin:
            return f"the commit of the submodule {module.path} is not {module.pin}"
        if commit_tree_id(commits[0]) != module.root:
            return f"the tree of the submodule {module.path} is not {module.root}"
    return None


def _find(root: str, path: str, trees: Mapping[str, bytes]) -> Entry | None:
    entry: Entry | None = Entry(TREE, root)
    for part in path.split("/") if path != "." else ():
        data = trees.get(entry.oid) if entry is not None and entry.is_tree else None
        entry = parse_tree(data).get(part) if data is not None else None
    return entry


def _is_proven_absent(root: str, path: str, trees: Mapping[str, bytes]) -> bool:
    """Return whether the objects prove that a path does not exist."""
    entry = Entry(TREE, root)
    for part in path.split("/"):
        if not entry.is_tree:
            return True
        if entry.oid not in trees:
            return False
        found = parse_tree(trees[entry.oid]).get(part)
        if found is None:
            return True
        entry = found
    return False
