"""The keys that a class of the trainer takes from a section of its configuration, from its text.

That is the attributes that its `__init__` sets, its annotated fields, and the names that its methods look up in a
mapping that they are given. Bases in the tree count, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from npu_rl.recipes.trainer_code.source_index import Module, SourceIndex

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
    """Return the class `package.module.Name`, or None if the code has none of this name."""
    found = sources.find(dotted)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return None
    module, node = found[0], found[1]
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
        found = sources.find_expression(module, base)
        if found and isinstance(found[1], ast.ClassDef):
            yield from _with_bases(sources, found[0], found[1], depth + 1)


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
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == own
            ):
                yield target.attr


def _looked_up(method: ast.FunctionDef) -> Iterator[str]:
    """Yield NAME of `given.get("NAME")`, `given["NAME"]` and `"NAME" in given`, where `given` is a parameter."""
    given = {item.arg for item in (*method.args.args[1:], *method.args.kwonlyargs)}

    def is_given(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in given

    for node in ast.walk(method):
        name: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = node.args[0] if node.func.attr in ("get", "pop") and is_given(node.func.value) else None
        elif isinstance(node, ast.Subscript) and is_given(node.value):
            name = node.slice
        elif (
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.In)
            and is_given(node.comparators[0])
        ):
            name = node.left
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value


def _replaces_hyphens(method: ast.FunctionDef) -> bool:
    """Return whether a method has `….replace("-", "_")`."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "replace"
        and [item.value for item in node.args if isinstance(item, ast.Constant)] == ["-", "_"]
        for node in ast.walk(method)
    )
