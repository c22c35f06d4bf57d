"""Data flow of a value from the expression that reads it, through names, attributes and calls.

Only functions of the code tree are followed, by the names that their modules import.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from npu_rl.recipes.trainer_code.registries import registered_names
from npu_rl.recipes.trainer_code.source_index import Module, SourceIndex, imported_names
from npu_rl.recipes.trainer_code.syntax_nodes import base_names, last_name, text_of
from npu_rl.recipes.trainer_keys.value_guards import UNKNOWN, GuardedFunction, expression_text

_MAX_DEPTH = 4  # how many calls deep a value is followed
_MUTATORS = ("add", "append", "extend", "insert", "pop", "remove", "setdefault", "update")

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = tuple[Module, AnyFunction, ast.ClassDef | None]


@dataclass(frozen=True)
class ValueUse:
    """A function that has the value.

    Attributes:
        module: Its module.
        node: Its definition.
        owner: The class, if it is a method.
        texts: The expressions that are the value, each with the line up to which it is.
        cut: An ending that was cut off the value on its way.
    """

    module: Module
    node: AnyFunction
    owner: ast.ClassDef | None
    texts: Mapping[str, float]
    cut: str = ""


@dataclass(frozen=True)
class _FunctionParts:
    """The parts of a function that are examined.

    Attributes:
        assignments: The line and value of each assignment, by name.
        calls: All calls.
        reads: Comparisons, items, calls and loops.
        imports: Imports inside of the function, by name.
    """

    assignments: Mapping[str, list[tuple[int, ast.expr | None]]]
    calls: list[ast.Call]
    reads: list[ast.AST]
    imports: Mapping[str, ast.stmt]


class ValueFlow:
    """The uses of values in one code folder."""

    def __init__(self, sources: SourceIndex) -> None:
        self._sources = sources
        self._parts: dict[int, _FunctionParts] = {}
        self._registries: dict[tuple[str, str], dict[str, None] | None] = {}

    def follow(self, use: ValueUse) -> Iterator[tuple[ValueUse, GuardedFunction]]:
        """Yield each function that the value reaches, with all its names in that function.

        The first one is the function of `use`.
        """
        seen: set[tuple[str, int, frozenset[str], str]] = set()
        todo = [(use, 0)]
        while todo:
            here, depth = todo.pop(0)
            here = self._with_aliases(here)
            place = (here.module.file, here.node.lineno, frozenset(here.texts), here.cut)
            if place in seen:
                continue
            seen.add(place)
            yield here, self._function(here)
            if depth < _MAX_DEPTH:
                ways = (self._attribute_uses, self._callee_uses, self._cut_uses)
                todo += [(further, depth + 1) for way in ways for further in way(here)]

    def in_class(
        self, module: Module, owner: ast.ClassDef, attribute: str, method: str = ""
    ) -> Iterator[tuple[ValueUse, GuardedFunction]]:
        """Yield the methods of a class that read `self.attribute`, or only the one named `method`."""
        if attribute not in _attributes(owner):
            return
        for name, node in methods(owner).items():
            if name == method or (not method and attribute in _attributes(node)):
                use = self._with_aliases(ValueUse(module, node, owner, {f"self.{attribute}": math.inf}))
                yield use, self._function(use)

    def _function(self, use: ValueUse) -> GuardedFunction:
        parts = self._parts_of(use.node)
        module = replace(use.module, names={**use.module.names, **parts.imports})
        local = _local_constants(use.node, parts.assignments)

        def resolve(node: ast.expr) -> Any:
            return self._constant(node, module, use.owner, local)

        def indexed(node: ast.expr) -> Collection[str] | None:
            return self._lookup_names(node, module, use.owner, local)

        own = methods(use.owner) if use.owner else {}
        lists = [name for name, node in local.items() if _is_split(node, use.texts)]
        return GuardedFunction(use.node.body, use.texts, resolve, parts.reads, own, indexed, lists)

    def _constant(
        self, node: ast.expr, module: Module, owner: ast.ClassDef | None, local: Mapping[str, ast.expr]
    ) -> Any:
        """Return a constant of the function, class or module, an enumeration's member or a registry's names."""
        if isinstance(node, ast.Call):
            return self._constant_call(node, module, owner, local)
        if isinstance(node, ast.Name) and node.id in local:
            return _literal(local[node.id])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return _literal(_class_constant(owner, node.attr)) if owner else UNKNOWN
        member = self._enumeration_member(node, module)
        if member is not UNKNOWN:
            return member
        found = self._sources.find_expression(module, node)
        if found is None or not isinstance(found[1], (ast.Assign, ast.AnnAssign)):
            return UNKNOWN
        name = last_name(node)
        place = (found[0].file, name)
        if place not in self._registries:
            self._registries[place] = registered_names(self._sources, found[0], name)
        if registered := self._registries[place]:
            return registered
        return UNKNOWN if self._is_mutated(found[0], name) else _literal(found[1].value)

    def _is_mutated(self, module: Module, name: str) -> bool:
        """Return whether a module modifies one of its collections after the definition."""
        text = self._sources.content(module)
        word = re.escape(name)
        change = rf"\b{word}\s*(?:\[[^\]\n]*\]\s*=[^=]|[+|-]=|\.(?:{'|'.join(_MUTATORS)})\()"
        return re.search(change.encode(), text) is not None

    def _constant_call(
        self, node: ast.Call, module: Module, owner: ast.ClassDef | None, local: Mapping[str, ast.expr]
    ) -> Any:
        """Return the constant of `NAMES.keys()`, `list(NAMES)` and the like."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "keys" and not node.args:
            return self._constant(node.func.value, module, owner, local)
        plain = isinstance(node.func, ast.Name) and node.func.id in ("list", "set", "tuple", "frozenset")
        if not plain or len(node.args) != 1:
            return UNKNOWN
        inner = GuardedFunction((), {}, lambda item: self._constant(item, module, owner, local))
        return inner.constant(node.args[0])

    def _lookup_names(
        self, node: ast.expr, module: Module, owner: ast.ClassDef | None, local: Mapping[str, ast.expr]
    ) -> Collection[str] | None:
        """Return the names that `NAMES[value]` or `Enumeration(value)` accepts, or None."""
        if isinstance(node, ast.Subscript):
            if not isinstance(node.value, (ast.Name, ast.Attribute)):
                return None
            names = self._constant(node.value, module, owner, local)
            mapping = isinstance(names, dict) and all(isinstance(name, str) for name in names)
            return list(names) if mapping and names else None
        called = self._sources.find_expression(module, node.func) if isinstance(node, ast.Call) else None
        return enumeration_values(called[1]) if called else None

    def _enumeration_member(self, node: ast.expr, module: Module) -> Any:
        """Return the value of `Enumeration.MEMBER` or `Enumeration.MEMBER.value`."""
        if isinstance(node, ast.Attribute) and node.attr == "value" and isinstance(node.value, ast.Attribute):
            node = node.value
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute))):
            return UNKNOWN
        found = self._sources.find_class_expression(module, node.value)
        if found and enumeration_values(found[1]):
            return _literal(_class_constant(found[1], node.attr))
        return UNKNOWN

    def _attribute_uses(self, use: ValueUse) -> Iterator[ValueUse]:
        """Yield the other methods that read `self.name` after this one assigns the value to it."""
        if use.owner is None:
            return
        for target, values in self._parts_of(use.node).assignments.items():
            if target.startswith("self.") and any(v and _is_named(v, use.texts) for _, v in values):
                for method in methods(use.owner).values():
                    if method is not use.node and target[5:] in _attributes(method):
                        yield ValueUse(use.module, method, use.owner, {target: math.inf}, use.cut)

    def _cut_uses(self, use: ValueUse) -> Iterator[ValueUse]:
        """Yield the functions that get the value after this one removed an ending, such as the + of "k3+"."""
        for name, values in self._parts_of(use.node).assignments.items():
            ending = _cut_ending(values[0][1], use.texts) if len(values) == 1 and not use.cut else ""
            if ending:
                yield from self._callee_uses(replace(use, texts={name: math.inf}, cut=ending))

    def _callee_uses(self, use: ValueUse) -> Iterator[ValueUse]:
        """Yield the functions and classes that get the value as an argument."""
        parts = self._parts_of(use.node)
        module = replace(use.module, names={**use.module.names, **parts.imports})
        for node in parts.calls:
            at = next((i for i, item in enumerate(node.args) if _is_named(item, use.texts)), None)
            by = next((k.arg for k in node.keywords if k.arg and _is_named(k.value, use.texts)), None)
            if (at is None and by is None) or any(isinstance(item, ast.Starred) for item in node.args):
                continue
            for called in self._parameter(node.func, module, use.owner, at, by):
                yield replace(called, cut=use.cut)

    def _parts_of(self, node: AnyFunction) -> _FunctionParts:
        if id(node) not in self._parts:
            self._parts[id(node)] = _parts(node)
        return self._parts[id(node)]

    def _with_aliases(self, use: ValueUse) -> ValueUse:
        """Add the function's other names for the value, each up to the line that reassigns it."""
        assignments = self._parts_of(use.node).assignments
        texts = dict(use.texts)
        for target, values in assignments.items():
            if "." not in target and any(v and _is_same(v, texts) for _, v in values):
                texts.setdefault(target, math.inf)
        for text in texts:
            others = [line for line, v in assignments.get(text, ()) if not (v and _is_same(v, texts))]
            texts[text] = min([texts[text], *others])
        return replace(use, texts=texts)

    def _parameter(
        self, called: ast.expr, module: Module, owner: ast.ClassDef | None, at: int | None, by: str | None
    ) -> Iterator[ValueUse]:
        own = methods(owner) if owner else {}
        if isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "self":
            method = own.get(called.attr)
            found: _Definition | None = (module, method, owner) if method else None
        else:
            found = self._definition(called, module)
        if found is None:
            return
        where, node, holder = found
        names = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
        keyword_only = [item.arg for item in node.args.kwonlyargs]
        if holder is not None and names and names[0] in ("self", "cls"):
            names = names[1:]
        name = by if by in (*names, *keyword_only) else None
        if by is None and at is not None and at < len(names):
            name = names[at]
        if name is not None:
            yield ValueUse(where, node, holder, {name: math.inf})

    def _definition(self, called: ast.expr, module: Module) -> _Definition | None:
        found = self._sources.find_expression(module, called)
        if found is None:
            return None
        if isinstance(found[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return found[0], found[1], None
        if isinstance(found[1], ast.ClassDef) and (start := methods(found[1]).get("__init__")):
            return found[0], start, found[1]
        return None


def enumeration_values(node: ast.stmt) -> list[str] | None:
    """Return the texts of an enumeration's members; None for any other class."""
    if not isinstance(node, ast.ClassDef):
        return None
    is_enumeration = {"Enum", "StrEnum"}.intersection(base_names(node))
    if not is_enumeration or any(getattr(one, "name", "") == "_missing_" for one in node.body):
        return None
    values = [_literal(item.value) for item in node.body if isinstance(item, ast.Assign)]
    texts = [value for value in values if isinstance(value, str)]
    return texts if texts and len(texts) == len(values) else None


def methods(owner: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Return the methods that a class itself defines."""
    return {item.name: item for item in owner.body if isinstance(item, ast.FunctionDef)}


def _parts(function: AnyFunction) -> _FunctionParts:
    assignments: dict[str, list[tuple[int, ast.expr | None]]] = {}
    reads: list[ast.AST] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                value = node.value if len(node.targets) == 1 else None
                assignments.setdefault(expression_text(target), []).append((node.lineno, value))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            assignments.setdefault(expression_text(node.target), []).append((node.lineno, None))
        elif isinstance(node, (ast.Call, ast.Compare, ast.Subscript, ast.For)):
            reads.append(node)
    assignments.pop("", None)
    calls = [node for node in reads if isinstance(node, ast.Call)]
    return _FunctionParts(assignments, calls, reads, imported_names(function))


def _is_same(node: ast.expr, texts: Collection[str]) -> bool:
    """Return whether an expression is the value, possibly in a list or in a branch of a condition."""
    if isinstance(node, ast.IfExp):
        sides = (node.body, node.orelse)
        same = [_is_same(side, texts) or _is_value_of(side, texts) for side in sides]
        made = (not one and _has_value(side, texts) for one, side in zip(same, sides, strict=True))
        return any(same) and not any(made)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):  # a text that is not empty is the value
        return _is_named(node.values[0], texts)
    if isinstance(node, ast.List) and len(node.elts) == 1:
        return _is_named(node.elts[0], texts)
    return _is_named(node, texts)


def _has_value(node: ast.expr, texts: Collection[str]) -> bool:
    """Return whether an expression is derived from the value."""
    return any(isinstance(item, ast.expr) and _is_named(item, texts) for item in ast.walk(node))


def _cut_ending(node: ast.expr | None, texts: Collection[str]) -> str:
    """Return the ending of `value[:-1] if value.endswith("+") else value`; empty for any other expression."""
    if not isinstance(node, ast.IfExp) or not _is_named(node.orelse, texts):
        return ""
    name = expression_text(node.orelse)
    for item in ast.walk(node.test):
        ending = text_of(item)
        if ending and ast.unparse(node.test) == f"{name}.endswith({ending!r})":
            return ending if ast.unparse(node.body) == f"{name}[:-{len(ending)}]" else ""
    return ""


def _is_split(node: ast.expr, texts: Collection[str]) -> bool:
    """Return whether an expression is `[part.strip() for part in value.split(",") if part.strip()]`."""
    text = ast.unparse(node) if isinstance(node, ast.ListComp) else ""
    part = text.partition(".strip()")[0].strip("[")
    splits = (f"[{part}.strip() for {part} in {name}.split(',') if {part}.strip()]" for name in texts)
    return text in splits


def _is_named(node: ast.expr, texts: Collection[str]) -> bool:
    text = expression_text(node)
    return bool(text) and text in texts


def _is_value_of(node: ast.expr, texts: Collection[str]) -> bool:
    """Return whether an expression is `VALUE.value`, where the value may be an enumeration member."""
    return isinstance(node, ast.Attribute) and node.attr == "value" and _is_named(node.value, texts)


@lru_cache(maxsize=1024)
def _attributes(node: ast.AST) -> frozenset[str]:
    return frozenset(item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute))


def _local_constants(
    node: AnyFunction, assignments: Mapping[str, list[tuple[int, ast.expr | None]]]
) -> dict[str, ast.expr]:
    """Return the local names that a function assigns once, with their values."""
    parameters = {item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    once = {name: values[0][1] for name, values in assignments.items() if len(values) == 1}
    return {name: value for name, value in once.items() if value is not None and name not in parameters}


def _class_constant(owner: ast.ClassDef, name: str) -> ast.expr | None:
    """Return the value of a name in a class's body if no method reassigns it, else None."""
    values: Sequence[ast.expr | None] = [
        item.value
        for item in owner.body
        if isinstance(item, (ast.Assign, ast.AnnAssign))
        for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
        if isinstance(target, ast.Name) and target.id == name
    ]
    again = any(
        isinstance(item, ast.Attribute) and item.attr == name and isinstance(item.ctx, ast.Store)
        for item in ast.walk(owner)
    )
    return values[0] if len(values) == 1 and not again else None


def _literal(node: ast.expr | None) -> Any:
    """Return a constant or a collection of constants (for a mapping, a mapping of its keys), or UNKNOWN."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        items = [_literal(item) for item in node.elts]
        return UNKNOWN if any(item is UNKNOWN for item in items) else items
    if isinstance(node, ast.Dict) and node.keys:
        keys = [_literal(key) if key else UNKNOWN for key in node.keys]
        plain = all(isinstance(key, (str, int)) for key in keys)
        return dict.fromkeys(keys) if plain else UNKNOWN
    return UNKNOWN
