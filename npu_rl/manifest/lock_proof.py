"""The proof in a lock: the pin's commit object and the trees on the way to what is taken.

Hashing them shows, off line, that this commit contains these trees. Writing one is `locking`'s business.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from npu_rl.errors import LockError
from npu_rl.objects import TREE, Entry, MalformedObject, commit_tree_id, object_id, parse_tree

if TYPE_CHECKING:
    from npu_rl.manifest.lock import Component

_LARGEST = 8 * 1024 * 1024  # of one object: a bomb is not unpacked


def pack(objects: Iterable[bytes]) -> tuple[str, ...]:
    """Objects (the pin's commit, its root tree, other trees) as text for the lock."""
    return tuple(base64.b64encode(zlib.compress(data, 9)).decode() for data in objects)


def check_proof(name: str, component: Component, where: str) -> None:
    """Prove that the pin contains what is taken. Raises LockError."""
    if component.pin is None:
        return
    try:
        why = _flaw(component)
    except (ValueError, zlib.error, MalformedObject) as error:  # no base64, an object cut short
        why = str(error)
    if why is not None:
        raise LockError(
            f"The lock does not prove what it says about {name}",
            where=where,
            why=why,
            hint="Make it anew: npu-rl lock --manifest M",
        )


def _flaw(component: Component) -> str | None:
    objects = _unpacked(component.proof)
    if not objects or object_id("commit", objects[0]) != component.pin:
        return f"its first object is not the commit {component.pin}"
    trees = {object_id("tree", data): data for data in objects[1:]}
    root = commit_tree_id(objects[0])
    if component.root is not None and component.root != root:
        return f"the commit's tree is {root}, not {component.root}"
    if component.checkout == "full" and component.root is None:
        return "it names no root tree"
    for take in component.take:
        found = _find(root, take.path, trees)
        if found != take.entry:
            return f"{take.path} is {found.oid if found else 'not there'}, not {take.id}"
    for module in component.submodules:
        commits = _unpacked(module.proof)
        if not commits or object_id("commit", commits[0]) != module.pin:
            return f"the commit of the submodule {module.path} is not {module.pin}"
        if commit_tree_id(commits[0]) != module.root:
            return f"the tree of the submodule {module.path} is not {module.root}"
    return None


def _unpacked(proof: Iterable[str]) -> list[bytes]:
    return [zlib.decompressobj().decompress(base64.b64decode(text), _LARGEST) for text in proof]


def _find(root: str, path: str, trees: Mapping[str, bytes]) -> Entry | None:
    entry: Entry | None = Entry(TREE, root)
    for part in path.split("/") if path != "." else ():
        data = trees.get(entry.oid) if entry is not None and entry.is_tree else None
        entry = parse_tree(data).get(part) if data is not None else None
    return entry
