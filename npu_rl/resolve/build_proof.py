"""The git objects that prove a pin contains what is taken from it."""

from __future__ import annotations

from collections.abc import Iterable

from npu_rl.compose.git_trees import Trees
from npu_rl.git.objects import EMPTY_TREE, Entry
from npu_rl.lock.inclusion_proof import pack


def proof(trees: Trees, commit: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The commit object and the trees on the way to each path, for the lock."""
    kind, data = trees.read_object(commit)
    assert kind == "commit", f"{commit} is a {kind}"
    root = data[5:45].decode()
    needed = [root]
    for path in paths:
        if path == ".":
            continue
        oid = root
        for name in path.split("/")[:-1]:
            entry: Entry | None = trees.entries(oid).get(name)
            if entry is None or not entry.is_tree:
                break
            oid = entry.oid
            needed.append(oid)
    unique = [oid for oid in dict.fromkeys(needed) if oid != EMPTY_TREE]
    return pack([data, *(trees.read_object(oid)[1] for oid in unique)])
