"""Whether a value can't be what its reader takes: told only where that is certain."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from npu_rl.config.problems import shown
from npu_rl.trainer_code.source_index import Field, Module, Sources

_NAMES = {
    "bool": "bool",
    "int": "number",
    "float": "number",
    "str": "text",
    "None": "none",
    "list": "list",
    "List": "list",
    "tuple": "list",
    "Tuple": "list",
    "Sequence": "list",
    "dict": "mapping",
    "Dict": "mapping",
    "Mapping": "mapping",
}
_SAID = {
    "bool": "true or false",
    "number": "a number",
    "text": "text",
    "list": "a list",
    "mapping": "a mapping",
    "none": "null",
}
_DEPTH = 8


@dataclass(frozen=True)
class Kinds:
    """What a reader takes. kinds: of _SAID's keys, empty if unknown. choices: the only texts, if not empty."""

    kinds: frozenset[str] = frozenset()
    choices: tuple[str, ...] = ()

    def wrong(self, value: Any) -> str | None:
        """Why the value is certainly not one of these; None if it may be."""
        if not self.kinds or value is None or (isinstance(value, str) and "${" in value):
            return None
        kind = _kind(value)
        if kind == "text" and self.choices:
            if value in self.choices:
                return None
            return f"must be one of {', '.join(self.choices)}, not {shown(value)}"
        if kind in self.kinds or self._passes(value, kind):
            return None
        return f"must be {self}, not {_said(value)}"

    def _passes(self, value: Any, kind: str) -> bool:
        """Values of another kind that readers still make sense of: 0 and 1 as switches, 7 as text."""
        if kind == "number":
            return "text" in self.kinds or ("bool" in self.kinds and value in (0, 1))
        if kind == "bool":
            return "text" in self.kinds
        return kind == "list" and "text" in self.kinds  # one file or several

    def __str__(self) -> str:
        names = [_SAID[kind] for kind in _SAID if kind in self.kinds and kind != "none"]
        return " or ".join(names) or "null"


ANY = Kinds()


def of_default(value: Any) -> Kinds:
    """What a key takes whose configuration file gives it this value."""
    if isinstance(value, bool):
        return Kinds(frozenset({"bool"}))
    if isinstance(value, (int, float)):
        return Kinds(frozenset({"number"}))
    return ANY


def of_field(field: Field, sources: Sources) -> Kinds:
    """What a typed field takes, by its annotation; ANY if a name in it isn't found in the tree."""
    if field.annotation is None:
        return ANY
    return _merged(list(_of(field.annotation, field.module, sources, 0)))


def of_named_type(node: ast.expr | None) -> Kinds:
    """What `type=int` of an argument parser takes."""
    kind = _NAMES.get(node.id) if isinstance(node, ast.Name) else None
    return Kinds(frozenset({kind})) if kind in ("bool", "number") else ANY


def dataclass_of(field: Field, sources: Sources) -> tuple[Module, ast.ClassDef] | None:
    """The class in the tree a field is annotated with, `Optional[...]` taken off."""
    for node in ast.walk(field.annotation) if field.annotation else ():
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = sources.expression(field.module, node)
            if found and isinstance(found[1], ast.ClassDef) and sources.fields_of(found[0], found[1]):
                return found[0], found[1]
    return None


def _of(node: ast.expr, module: Module, sources: Sources, depth: int) -> Iterator[Kinds | None]:
    """The alternatives of an annotation; None for one that isn't known."""
    if isinstance(node, ast.Constant):
        yield from _constant(node, module, sources, depth)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _of(node.left, module, sources, depth)
        yield from _of(node.right, module, sources, depth)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, module, sources, depth)
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield Kinds(frozenset({_NAMES[node.id]}))
    else:
        found = sources.expression(module, node) if depth < _DEPTH else None
        if found and isinstance(found[1], ast.Assign):
            yield from _of(found[1].value, found[0], sources, depth + 1)
        elif found and isinstance(found[1], ast.ClassDef):
            yield _members(found[1])
        else:
            yield None


def _members(owner: ast.ClassDef) -> Kinds | None:
    """What may be meant by one of an enumeration of numbers: a member's name, or its number. None for other classes."""
    members = {
        target.id: statement.value.value
        for statement in owner.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    plain = [ast.unparse(base).rpartition(".")[2] for base in owner.bases] == ["Enum"]
    if not plain or not members or any(type(value) is not int for value in members.values()):
        return None
    return Kinds(frozenset({"text", "number"}), tuple(members))


def _constant(node: ast.Constant, module: Module, sources: Sources, depth: int) -> Iterator[Kinds | None]:
    if node.value is None:
        yield Kinds(frozenset({"none"}))
    elif isinstance(node.value, str) and depth < _DEPTH:
        try:
            inner = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            yield None
        else:
            yield from _of(inner, module, sources, depth + 1)
    else:
        yield None


def _subscript(node: ast.Subscript, module: Module, sources: Sources, depth: int) -> Iterator[Kinds | None]:
    name = ast.unparse(node.value).rpartition(".")[2]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        texts = tuple(value for value in values if isinstance(value, str))
        known = {_kind(value) for value in values}
        yield Kinds(frozenset(known), texts) if len(values) == len(parts) and values else None
    elif name in ("Optional", "Union"):
        for part in parts:
            yield from _of(part, module, sources, depth)
        if name == "Optional":
            yield Kinds(frozenset({"none"}))
    elif name == "Annotated":
        yield from _of(parts[0], module, sources, depth)
    elif name in _NAMES:
        yield Kinds(frozenset({_NAMES[name]}))
    else:
        yield None


def _merged(parts: Sequence[Kinds | None]) -> Kinds:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return ANY
    kinds = frozenset().union(*(part.kinds for part in known))
    open_text = any("text" in part.kinds and not part.choices for part in known)
    choices = () if open_text else tuple(c for part in known for c in part.choices)
    return Kinds(kinds, choices)


def _kind(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "mapping" if isinstance(value, dict) else "list"


def _said(value: Any) -> str:
    if isinstance(value, str):
        return shown(value)
    kind = _kind(value)
    return (
        _SAID[kind] if kind in ("list", "mapping") else str(value).lower() if kind == "bool" else str(value)
    )
