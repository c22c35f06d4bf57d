"""The names that a Python file defines for others: in its module and its classes, not inside functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npu_rl.common.bounded import syntax_tree

if TYPE_CHECKING:
    import ast


def bound_names(content: bytes) -> frozenset[str]:
    """Return the names, qualified by their class (`Attention.forward`); an empty set for an invalid file."""
    tree = syntax_tree(content)
    return frozenset(_bound(tree, "")) if tree is not None else frozenset()


def _bound(body: ast.AST, owner: str) -> Iterator[str]:
    import ast

    for node in ast.iter_child_nodes(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield owner + node.name
            if isinstance(node, ast.ClassDef):
                yield from _bound(node, f"{owner}{node.name}.")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (owner + (alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield owner + node.id
        elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            yield from _bound(node, owner)
