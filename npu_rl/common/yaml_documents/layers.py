"""Merging of files along `extends:`, with the file and line of every value.

Mappings merge key by key; lists and texts replace the parent's; an explicit null removes the parent's key. Where a
list is expected, `{append: [...]}` adds to the parent's. Items that a list or a null removes are recorded, since a
patch that is no longer applied leaves no other trace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.problems import KeyPath, Problem, place

APPEND = "append"
NO_PARENT = f"`{APPEND}:` needs a parent (`extends:`) whose list it adds to: write the list itself"
NO_LIST = f"`{APPEND}:` must be a list"
NO_VALUE = "has no value, and no parent sets this key: write a value ([] or {} for none), or remove the line"


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a file, as messages show it, and a line from 1 (0 if it is not in a file)."""

    file: str
    line: int

    def __str__(self) -> str:
        return place(self.file, self.line)


@dataclass(frozen=True)
class Node:
    """A value and its origin, with everything below it."""

    origin: Origin
    value: str | list[Node] | dict[str, Node] | None


@dataclass(frozen=True)
class Dropped:
    """Items of a parent's list that a child's list or null removes; `at` is where the child does so."""

    path: KeyPath
    at: Origin
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Lists:
    """State of lists during a merge: `is_list` returns whether the model expects a list at a key path."""

    is_list: Callable[[KeyPath], bool] = lambda _: False
    dropped: list[Dropped] = field(default_factory=list)


@dataclass(frozen=True)
class Layer:
    """Merged plain data, and the origin of every key and item in it."""

    data: dict[str, Plain]
    origins: dict[KeyPath, Origin]

    def existing(self, path: KeyPath) -> KeyPath:
        """Return the longest prefix of `path` that some file sets."""
        while path not in self.origins:
            path = path[:-1]
        return path


def overlay(
    parent: Node | None,
    child: Document,
    problems: list[Problem],
    intermediate: Collection[KeyPath] = (),
    lists: Lists | None = None,
) -> Node:
    """Merge the child's values over the parent's.

    A null that removes nothing, or an `append:` without a parent's list, is added to `problems`.

    Args:
        intermediate: Mappings that the child contains only as a path to a value; they keep the parent's origin.
        lists: Where `append:` is allowed; removed items are added to its `dropped`.
    """
    merging = _Overlay(child, problems, intermediate, lists or Lists(), parent is not None)
    return merging.value(parent, child.data, ())


def plain(node: Node) -> Plain:
    """Return a value without its origins."""
    return _flatten(node, (), {})


def flatten(root: Node) -> Layer:
    """Split a merged tree into plain data and origins. The root is a mapping."""
    origins: dict[KeyPath, Origin] = {}
    data = _flatten(root, (), origins)
    return Layer(data if isinstance(data, dict) else {}, origins)


@dataclass(frozen=True)
class _Overlay:
    child: Document
    problems: list[Problem]
    passed: Collection[KeyPath]
    lists: Lists
    has_parent: bool

    def value(self, inherited: Node | None, replacement: Plain, path: KeyPath) -> Node:
        origin = Origin(self.child.name, self.child.lines[path])
        if isinstance(replacement, dict) and list(replacement) == [APPEND] and self.lists.is_list(path):
            return Node(origin, self._appended(inherited, replacement[APPEND], path))
        if isinstance(replacement, dict):
            if path in self.passed and inherited is not None and isinstance(inherited.value, dict):
                origin = inherited.origin
            return Node(origin, self._mapping(inherited.value if inherited else None, replacement, path))
        if isinstance(replacement, list):
            items = self._items(replacement, path)
            self._drop(inherited, items, path)
            return Node(origin, items)
        if replacement is None:
            self._problem(path, NO_VALUE)
        return Node(origin, replacement)

    def _items(self, replacement: list[Plain], path: KeyPath) -> list[Node]:
        return [self.value(None, item, (*path, index)) for index, item in enumerate(replacement)]

    def _appended(self, inherited: Node | None, replacement: Plain, path: KeyPath) -> list[Node]:
        """Return the parent's list (or an empty one) followed by the child's items."""
        above = inherited.value if inherited is not None and isinstance(inherited.value, list) else []
        written = (*path, APPEND)
        if not isinstance(replacement, list):
            self._problem(written, NO_LIST)
            return above
        if not self.has_parent:
            self._problem(written, NO_PARENT)
        return [*above, *self._items(replacement, written)]

    def _drop(self, inherited: Node | None, kept: list[Node], path: KeyPath) -> None:
        """Record the items of the parent's lists, at the path and below it, that are not in `kept`."""
        values = [plain(item) for item in kept]
        for at, items in _lists_in(inherited, path) if inherited is not None else ():
            removed = tuple(item for item in items if plain(item) not in values)
            if removed:
                origin = Origin(self.child.name, self.child.lines[path])
                self.lists.dropped.append(Dropped(at, origin, removed))

    def _mapping(self, inherited: object, replacement: dict[str, Plain], path: KeyPath) -> dict[str, Node]:
        result: dict[str, Node] = dict(inherited) if isinstance(inherited, dict) else {}
        for key, value in replacement.items():
            if value is not None:
                result[key] = self.value(result.get(key), value, (*path, key))
            elif key in result:
                self._drop(result.pop(key), [], (*path, key))
            else:
                self._problem((*path, key), NO_VALUE)
        return result

    def _problem(self, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(self.child.name, self.child.lines[path], path, message))


def _lists_in(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, list[Node]]]:
    """Yield every list of a tree of mappings, with its key path."""
    if isinstance(node.value, list):
        yield path, node.value
    elif isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _lists_in(child, (*path, key))


def _flatten(node: Node, path: KeyPath, origins: dict[KeyPath, Origin]) -> Plain:
    origins[path] = node.origin
    if isinstance(node.value, dict):
        return {key: _flatten(child, (*path, key), origins) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_flatten(child, (*path, index), origins) for index, child in enumerate(node.value)]
    return node.value
