"""The tree of a whole repository after its merges, from trees alone: what `expect:` is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from npu_rl.compose.git_trees import Draft, Trees
from npu_rl.errors import LockError


def whole_tree(
    trees: Trees, pin_root: str, requests: Iterable[tuple[str, str]], taken: Sequence[str], result: str
) -> str:
    """The repository's root tree after the merges.

    requests: (root at the merge base, root at the head) of each merge, in order.
    taken, result: the paths that were merged with their content, and the component tree that gave.
    Raises LockError if a file outside what is taken was changed on both sides: its merge needs its content.
    """
    root = Draft(trees, pin_root)
    for base, head in requests:
        for path, before, after in trees.changed(base, head):
            mine = root.find(path)
            if mine == before:
                root.put(path, after)
            elif mine != after and not _inside(path, taken):
                raise LockError(
                    f"`expect:` can't be checked: {path} was changed on both sides",
                    hint="Take that path too, or set `checkout: full`.",
                )
    if "." in taken:
        return result
    for path in taken:
        root.put(path, trees.find(result, path))
    return root.write()


def _inside(path: str, taken: Sequence[str]) -> bool:
    return any(t == "." or path == t or path.startswith(t + "/") for t in taken)
