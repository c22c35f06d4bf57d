"""Helpers for single syntax tree nodes: names, strings and assignments."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def last_name(node: ast.AST) -> str:
    """Return the last name of `name` or `x.name`; empty for any other expression."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def text_of(node: ast.AST | None) -> str | None:
    """Return the value of a string constant, or None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def assigned_values(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return the values assigned by `NAME = value` statements, by name."""
    return {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
