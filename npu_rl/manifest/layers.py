"""`extends:`: a child laid over its parent, each value remembering the file and line that wrote it.

Mappings merge key by key; lists and texts replace; an explicit null removes the parent's key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from npu_rl.manifest.problems import KeyPath, Problem, place
from npu_rl.manifest.yaml_text import Document, Plain

NO_VALUE = (
    "has no value, and there is nothing it could remove: write a value ([] or {} for none), or drop the line"
)


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
class Layer:
    """Merged plain data, and the origin of every key and item in it."""

    data: dict[str, Plain]
    origins: dict[KeyPath, Origin]

    def existing(self, path: KeyPath) -> KeyPath:
        """The longest beginning of `path` that was written somewhere."""
        while path not in self.origins:
            path = path[:-1]
        return path


def lay_over(
    parent: Node | None, child: Document, problems: list[Problem], passed: Collection[KeyPath] = ()
) -> Node:
    """The child's values over the parent's. A null that removes nothing is added to `problems`.

    passed: mappings the child only passes on its way to a value; where the parent has one, it stays the
    parent's.
    """
    return _Overlay(child, problems, passed).value(parent, child.data, ())


def flatten(root: Node) -> Layer:
    """Split a merged tree into plain data and origins. The root is a mapping."""
    origins: dict[KeyPath, Origin] = {}
    data = _flatten(root, (), origins)
    return Layer(data if isinstance(data, dict) else {}, origins)


class _Overlay:
    def __init__(self, child: Document, problems: list[Problem], passed: Collection[KeyPath]) -> None:
        self._child = child
        self._problems = problems
        self._passed = passed

    def value(self, under: Node | None, over: Plain, path: KeyPath) -> Node:
        origin = Origin(self._child.name, self._child.lines[path])
        if isinstance(over, dict):
            if path in self._passed and under is not None and isinstance(under.value, dict):
                origin = under.origin
            return Node(origin, self._mapping(under.value if under else None, over, path))
        if isinstance(over, list):
            return Node(origin, [self.value(None, item, (*path, index)) for index, item in enumerate(over)])
        if over is None:
            self._no_value(path)
        return Node(origin, over)

    def _mapping(self, under: object, over: dict[str, Plain], path: KeyPath) -> dict[str, Node]:
        result: dict[str, Node] = dict(under) if isinstance(under, dict) else {}
        for key, value in over.items():
            if value is not None:
                result[key] = self.value(result.get(key), value, (*path, key))
            elif result.pop(key, None) is None:
                self._no_value((*path, key))
        return result

    def _no_value(self, path: KeyPath) -> None:
        self._problems.append(Problem(self._child.name, self._child.lines[path], path, NO_VALUE))


def _flatten(node: Node, path: KeyPath, origins: dict[KeyPath, Origin]) -> Plain:
    origins[path] = node.origin
    if isinstance(node.value, dict):
        return {key: _flatten(child, (*path, key), origins) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_flatten(child, (*path, index), origins) for index, child in enumerate(node.value)]
    return node.value
