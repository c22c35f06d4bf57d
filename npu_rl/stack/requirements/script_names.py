"""The names in a script while its statements are evaluated, and the effect of a statement that can't be evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

_CHANGES = ("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault")
_LONGEST_SHOWN = 60  # characters of an expression
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Unknown(Exception):
    """A value that can't be known without running the script, with the node that can't be evaluated."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.node = node

    def __str__(self) -> str:
        shown = ast.unparse(self.node) if isinstance(self.node, ast.expr) else ""
        line = f"line {getattr(self.node, 'lineno', '?')}"
        if not shown or len(shown) > _LONGEST_SHOWN or "://" in shown:  # a URL may hold a password
            return line
        return f"{line}: {shown}"


@dataclass(frozen=True)
class FileLines:
    """The lines of a file, one of its lines, or a condition on a line; `path` is relative to the script's folder."""

    path: str


@dataclass(frozen=True)
class ForeignName:
    """A name from another module, or a builtin of Python."""

    name: str


@dataclass(frozen=True)
class Function:
    """A function of the script, and the names around it."""

    node: ast.FunctionDef
    scope: Scope

    def is_odd(self) -> bool:
        """Return whether a call does anything other than run the body and return."""
        odd = (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)
        signature = self.node.args
        return bool(
            signature.kwonlyargs or signature.kwarg or any(isinstance(n, odd) for n in ast.walk(self.node))
        )


@dataclass(frozen=True)
class Method:
    """A method of a value."""

    of: object
    name: str


class Scope(dict[str, object]):
    """The names in the script, or in one call of a function."""

    def __init__(self, outer: Scope | None = None) -> None:
        super().__init__()
        self.outer = outer

    def find(self, name: str) -> object:
        """Return the value of a name; an unbound name is a builtin."""
        if name in self or self.outer is None:
            return self.get(name, ForeignName(name))
        return self.outer.find(name)

    def assign(self, target: ast.expr, value: object) -> None:
        """Bind a name. Raises Unknown for any other target."""
        if not isinstance(target, ast.Name):
            raise Unknown(target)
        self[target.id] = value

    def add_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        """Bind the names that a statement imports."""
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                self[alias.asname or alias.name] = ForeignName(f"{node.module}.{alias.name}")
            else:
                root = alias.name.partition(".")[0]
                self[alias.asname or root] = ForeignName(alias.name if alias.asname else root)
        if "*" in self:  # any name may be another now
            self.clear()

    def forget(self, tree: ast.AST, unknown: Unknown) -> int:
        """Mark as unknown the names that a tree binds, and the lists and dicts that it mentions; return its size."""
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Name):
                _spoil(self.find(node.id), unknown)
        for node in nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self[node.id] = unknown
            elif isinstance(node, ast.alias):
                self[(node.asname or node.name).partition(".")[0]] = unknown
            elif isinstance(node, _DEFINITIONS):
                self[node.name] = unknown
        return len(nodes)


def _spoil(value: object, unknown: Unknown) -> None:
    """Make the items of a list or dict unknown in place, and so under all its names."""
    if isinstance(value, (list, dict)):
        items = list(value.values() if isinstance(value, dict) else value)
        value.clear()  # first: it may hold itself
        for item in items:
            _spoil(item, unknown)
    if isinstance(value, list):
        value.append(unknown)


def own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, except those inside functions."""
    if not isinstance(statement, (*_DEFINITIONS, ast.Lambda)):
        yield statement
        for child in ast.iter_child_nodes(statement):
            yield from own_nodes(child)


def changed_by_functions(tree: ast.Module) -> Iterator[str]:
    """Yield the names that functions or classes declare global or change in place."""
    for node in (node for top in tree.body for node in _in_definitions(top)):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif _changes_in_place(node):
            yield getattr(node.value, "id", "")


def _changes_in_place(node: ast.AST) -> TypeGuard[ast.Subscript | ast.Attribute]:
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Attribute) and node.attr in _CHANGES


def _in_definitions(tree: ast.AST) -> Iterator[ast.AST]:
    if isinstance(tree, (*_DEFINITIONS, ast.Lambda)):
        yield from ast.walk(tree)
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _in_definitions(child)
