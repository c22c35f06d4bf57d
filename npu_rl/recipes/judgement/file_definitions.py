"""The names that a Python file defines at its top level, found without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source


@dataclass(frozen=True)
class DefinedNames:
    """The top-level definitions of a Python file.

    Attributes:
        names: All names that are bound.
        callables: Names of all functions and classes.
        may_define_more: Whether other names may exist: a star import, `__getattr__`, `globals()`.
    """

    names: frozenset[str]
    callables: tuple[str, ...]
    may_define_more: bool

    def lacks(self, name: str) -> bool:
        """Return whether the file certainly has no such name."""
        return name not in self.names and not self.may_define_more


def definitions_in(path: Path) -> DefinedNames | None:
    """Return the definitions of a Python file, or None if it can't be read as Python."""
    content = read_source(path)
    tree = None if content is None else syntax_tree(content)
    if tree is None:
        return None
    bound: list[str] = []
    callables: list[str] = []
    may_define_more = False
    for node in _top_level(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            callables.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            may_define_more |= any(item.name == "*" for item in node.names)
            bound += [(item.asname or item.name).partition(".")[0] for item in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.append(node.id)
    called = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    may_define_more |= "__getattr__" in callables or bool(called & {"globals", "exec", "setattr", "vars"})
    return DefinedNames(frozenset((*bound, *callables)), tuple(callables), may_define_more)


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a module's own scope, those in `if`, `try`, `with` and loops too."""
    waiting: list[ast.AST] = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += reversed(list(ast.iter_child_nodes(node)))
