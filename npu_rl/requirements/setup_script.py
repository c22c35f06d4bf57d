"""The lists of a setup.py, read from its syntax tree; nothing of it is run."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TypeGuard

from npu_rl.bounded import parse_python
from npu_rl.requirements.reading import Reading, bounds_of, joined, python_bound

_MOST_STEPS = 1000  # names looked up
_CHANGES = ("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault")


class _Computed(Exception):
    """An expression that only running it would give; with its line."""


def read_setup_script(text: str, extras: Collection[str]) -> dict[str, Reading]:
    """Return what a setup.py declares, by extra; "" is what holds without one.

    Read are constants, lists of them, their sums, and names that are assigned once. What is computed otherwise is
    named as unread, and never guessed.
    """
    try:
        return _read(parse_python(text.encode("utf-8", "surrogatepass")), extras)
    except ValueError as error:
        return {"": Reading(unread=(str(error),))}
    except RecursionError:
        return {"": Reading(unread=("nested too deeply",))}


def _read(tree: ast.Module, extras: Collection[str]) -> dict[str, Reading]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_setup(node.func)]
    if len(calls) != 1:
        return {"": Reading(unread=(f"{len(calls)} calls of setup()",))}
    (call,) = calls
    names = _Names(tree)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    unpacked = ("some keywords of setup() are computed",) if None in keywords else ()
    found = {
        "": joined(
            _python(names, keywords.get("python_requires")),
            _listed(names, keywords.get("install_requires"), "install_requires"),
            Reading(unread=unpacked),
        )
    }
    for extra in extras:
        found[extra] = _listed(names, _extra(names, keywords.get("extras_require"), extra), f"extra {extra}")
    return found


def _is_setup(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name == "setup"


class _Names:
    """The values of names that are assigned once and not changed, nor bound in any other way."""

    def __init__(self, tree: ast.Module) -> None:
        bound = Counter(_bound_names(tree))
        assigned = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and len(node.targets) == 1
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._values = {name: value for name, value in assigned.items() if bound[name] == 1}
        self._steps = 0

    def resolve(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name stands for, or the expression itself. Raises _Computed."""
        while isinstance(node, ast.Name):
            self._steps += 1  # a = b + b; b = c + c; ... doubles with each line, and a = a never ends
            if node.id not in self._values or self._steps > _MOST_STEPS:
                raise _computed(node)
            node = self._values[node.id]
        return node

    def strings(self, node: ast.expr) -> Iterator[str | None]:
        """Yield the strings of a list, None for an item that is computed. Raises _Computed for another list."""
        node = self.resolve(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self.strings(node.left)
            yield from self.strings(node.right)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "list" and len(node.args) == 1:
            yield from self.strings(node.args[0])
        elif isinstance(node, (ast.List, ast.Tuple)):
            for item in node.elts:
                yield item.value if isinstance(item, ast.Constant) and isinstance(item.value, str) else None
        else:
            raise _computed(node)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name as often as it is bound or changed in place, in any scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif _changes_in_place(node):
            yield getattr(node.value, "id", "")


def _changes_in_place(node: ast.AST) -> TypeGuard[ast.Subscript | ast.Attribute]:
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Attribute) and node.attr in _CHANGES


def _computed(node: ast.AST) -> _Computed:
    return _Computed(f"line {getattr(node, 'lineno', '?')}")


def _python(names: _Names, node: ast.expr | None) -> Reading:
    if node is None:
        return Reading()
    try:
        value = names.resolve(node)
    except _Computed as where:
        return Reading(unread=(f"python_requires is computed ({where})",))
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return python_bound(value.value, "python_requires")
    return Reading(unread=(f"python_requires is computed ({_computed(value)})",))


def _listed(names: _Names, node: ast.expr | None, place: str) -> Reading:
    if node is None:
        return Reading()
    try:
        items = list(names.strings(node))
    except _Computed as where:
        return Reading(unread=(f"{place} is computed ({where})",))
    reading = bounds_of([item for item in items if item is not None], place)
    computed = sum(item is None for item in items)
    unread = (f"{computed} of {len(items)} entries of {place} are computed",) if computed else ()
    return joined(reading, Reading(unread=unread))


def _extra(names: _Names, node: ast.expr | None, extra: str) -> ast.expr | None:
    """Return the list of an extra; an expression that can't be read if there is none."""
    missing = ast.Name(id="", lineno=getattr(node, "lineno", 1))
    try:
        table = names.resolve(node) if node is not None else None
    except _Computed:
        return node
    if not isinstance(table, ast.Dict):
        return missing
    keys = [key.value if isinstance(key, ast.Constant) else None for key in table.keys]
    return table.values[keys.index(extra)] if extra in keys else missing
