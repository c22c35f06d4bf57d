"""`extends:`: a child laid over its parent, each value remembering the file and line that wrote it.

Mappings merge key by key; lists and texts replace; an explicit null removes the parent's key. Where a list is
expected, `{append: [...]}` adds to the parent's. What a list or a null takes away is recorded, since a patch
that is gone says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from npu_rl.config.problems import KeyPath, Problem, place
from npu_rl.config.yaml_reader import Document, Plain

APPEND = "append"
NO_PARENT = f"`{APPEND}:` needs a parent (`extends:`) whose list it adds to: write the list itself"
NO_LIST = f"`{APPEND}:` must be a list"
NO_VALUE = "has no value, and no parent sets this key: write a value ([] or {} for none), or remove the line"


@dataclass(frozen=True)
class Origin:
    """Who wrote a value. file: as messages show it. line: from 1, or 0 for what stands in no file."""

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
    """Items of a parent's list that a child's list, or its null, took away. at: who did; items: with their origins."""

    path: KeyPath
    at: Origin
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Lists:
    """What is known of lists while layers are laid. has: whether a list is expected at a key path."""

    is_list: Callable[[KeyPath], bool] = lambda _: False
    dropped: list[Dropped] = field(default_factory=list)


@dataclass(frozen=True)
class Layer:
    """Merged plain data, and the origin of every key and item in it."""

    data: dict[str, Plain]
    origins: dict[KeyPath, Origin]

    def existing(self, path: KeyPath) -> KeyPath:
        """The longest beginning of `path` that was written somewhere."""
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
    """The child's values over the parent's.

    A null that removes nothing, or an `append:` without a parent's list, is added to `problems`.
    passed: mappings the child only passes on its way to a value; where the parent has one, it stays the
    parent's. lists: where `append:` adds; items that are gone are added to its `dropped`.
    """
    return _Overlay(child, problems, intermediate, lists or Lists(), parent is not None).value(
        parent, child.data, ()
    )


def plain(node: Node) -> Plain:
    """A value without its origins."""
    return _flatten(node, (), {})


def flatten(root: Node) -> Layer:
    """Split a merged tree into plain data and origins. The root is a mapping."""
    origins: dict[KeyPath, Origin] = {}
    data = _flatten(root, (), origins)
    return Layer(data if isinstance(data, dict) else {}, origins)


class _Overlay:
    def __init__(
        self,
        child: Document,
        problems: list[Problem],
        intermediate: Collection[KeyPath],
        lists: Lists,
        has_parent: bool,
    ) -> None:
        self._child = child
        self._problems = problems
        self._passed = intermediate
        self._lists = lists
        self._has_parent = has_parent

    def value(self, inherited: Node | None, replacement: Plain, path: KeyPath) -> Node:
        origin = Origin(self._child.name, self._child.lines[path])
        if isinstance(replacement, dict) and list(replacement) == [APPEND] and self._lists.is_list(path):
            return Node(origin, self._appended(inherited, replacement[APPEND], path))
        if isinstance(replacement, dict):
            if path in self._passed and inherited is not None and isinstance(inherited.value, dict):
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
        """The parent's list with the child's items after it. A key the parent does not have is an empty list."""
        above = inherited.value if inherited is not None and isinstance(inherited.value, list) else []
        written = (*path, APPEND)
        if not isinstance(replacement, list):
            self._problem(written, NO_LIST)
            return above
        if not self._has_parent:
            self._problem(written, NO_PARENT)
        return [*above, *self._items(replacement, written)]

    def _drop(self, inherited: Node | None, kept: list[Node], path: KeyPath) -> None:
        """Record what the parent has in its lists, at the path and below it, and `kept` has not."""
        values = [plain(item) for item in kept]
        for at, items in _lists_in(inherited, path) if inherited is not None else ():
            removed = tuple(item for item in items if plain(item) not in values)
            if removed:
                origin = Origin(self._child.name, self._child.lines[path])
                self._lists.dropped.append(Dropped(at, origin, removed))

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
        self._problems.append(Problem(self._child.name, self._child.lines[path], path, message))


def _lists_in(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, list[Node]]]:
    """Every list of a tree of mappings, with its place."""
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
