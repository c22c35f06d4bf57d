"""The keys that a trainer's class reads from a section of its configuration, found in its source.

That is the attributes that its `__init__` sets, its annotated fields, and the names that its methods look up in a
mapping that they are given. Bases in the tree count, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from npu_rl.recipes.trainer_code.source_index import Module, SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import text_of

_MAX_DEPTH = 12


@dataclass(frozen=True)
class ConfigClass:
    """A class of the trainer's configuration.

    Attributes:
        keys: The names that it takes.
        where: file:line of the class.
        hyphens: Whether it reads a hyphen in a key as an underscore.
    """

    name: str
    keys: frozenset[str]
    where: str
    hyphens: bool

    def takes(self, key: str) -> bool:
        """Return whether the class reads the key."""
        return key in self.keys or (self.hyphens and key.replace("-", "_") in self.keys)


def read_config_class(sources: SourceIndex, dotted: str) -> ConfigClass | None:
    """Return the class `package.module.Name`, or None if the code doesn't define it."""
    found = sources.find_class(dotted)
    if found is None:
        return None
    module, node = found
    keys: set[str] = set()
    hyphens = False
    for holder in _with_bases(sources, module, node, 0):
        keys.update(_fields(holder))
        for method in holder.body:
            if isinstance(method, ast.FunctionDef):
                keys.update(_attributes(method) if method.name == "__init__" else ())
                keys.update(_looked_up(method))
                hyphens = hyphens or _replaces_hyphens(method)
    return ConfigClass(node.name, frozenset(keys), f"{module.file}:{node.lineno}", hyphens)


def _with_bases(
    sources: SourceIndex, module: Module, node: ast.ClassDef, depth: int
) -> Iterator[ast.ClassDef]:
    yield node
    for base in node.bases if depth < _MAX_DEPTH else ():
        if found := sources.find_class_expression(module, base):
            yield from _with_bases(sources, *found, depth + 1)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id


def _attributes(method: ast.FunctionDef) -> Iterator[str]:
    """Yield the names of `self.NAME = ...`."""
    own = method.args.args[0].arg if method.args.args else ""
    for node in ast.walk(method):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, (ast.Assign, ast.AnnAssign)) else ():
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", None) == own:
                yield target.attr


def _looked_up(method: ast.FunctionDef) -> Iterator[str]:
    """Yield NAME of `given.get("NAME")`, `given["NAME"]` and `"NAME" in given`, where `given` is a parameter."""
    given = {item.arg for item in (*method.args.args[1:], *method.args.kwonlyargs)}

    for node in ast.walk(method):
        holder: ast.expr | None = None
        name: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            holder, name = node.func.value, node.args[0] if node.func.attr in ("get", "pop") else None
        elif isinstance(node, ast.Subscript):
            holder, name = node.value, node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            holder, name = node.comparators[0], node.left
        text = text_of(name)
        if text is not None and getattr(holder, "id", None) in given:
            yield text


def _replaces_hyphens(method: ast.FunctionDef) -> bool:
    """Return whether a method has `….replace("-", "_")`."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "replace"
        and list(map(text_of, node.args)) == ["-", "_"]
        for node in ast.walk(method)
    )
