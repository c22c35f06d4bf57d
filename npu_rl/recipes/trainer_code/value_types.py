"""Expected types of keys, from the code that reads them. Only certain mismatches are reported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from npu_rl.common.bounded import syntax_tree
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.recipes.trainer_code.source_index import Class, Module, SourceField, SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import assigned_values, base_names

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
_DESCRIPTIONS = {
    "bool": "true or false",
    "number": "a number",
    "text": "text",
    "list": "a list",
    "mapping": "a mapping",
    "none": "null",
}
_DEPTH = 8


@dataclass(frozen=True)
class ExpectedType:
    """The values that a key accepts.

    Attributes:
        types: Names of types, keys of `_DESCRIPTIONS`; empty if unknown.
        choices: The only accepted texts, if not empty.
    """

    types: frozenset[str] = frozenset()
    choices: tuple[str, ...] = ()

    def mismatch(self, value: Any) -> str | None:
        """Return why the value certainly has another type; None if it may be valid."""
        if not self.types or value is None or (isinstance(value, str) and "${" in value):
            return None
        name = _type_name(value)
        if name == "text" and self.choices:
            if value in self.choices:
                return None
            return f"must be one of {', '.join(self.choices)}, not {shown(value)}"
        if name in self.types or self._is_convertible(value, name):
            return None
        return f"must be {self}, not {_describe(value)}"

    def _is_convertible(self, value: Any, name: str) -> bool:
        """Return whether code also accepts a value of another type, such as 0 and 1 as switches or 7 as text."""
        if name == "number":
            return "text" in self.types or ("bool" in self.types and value in (0, 1))
        if name == "bool":
            return "text" in self.types
        return name == "list" and "text" in self.types  # one file or several

    def __str__(self) -> str:
        names = [_DESCRIPTIONS[name] for name in _DESCRIPTIONS if name in self.types and name != "none"]
        return " or ".join(names) or "null"


ANY = ExpectedType()


def default_type(value: Any) -> ExpectedType:
    """Infer the type of a key from its default in a configuration file."""
    if isinstance(value, bool):
        return ExpectedType(frozenset({"bool"}))
    if isinstance(value, (int, float)):
        return ExpectedType(frozenset({"number"}))
    return ANY


def field_type(field: SourceField, sources: SourceIndex) -> ExpectedType:
    """Return the type of a field from its annotation; ANY if a name in it isn't found in the tree."""
    if field.annotation is None:
        return ANY
    return _union(list(_alternatives(field.annotation, field.module, sources, 0)))


def named_type(node: ast.expr | None) -> ExpectedType:
    """Return the type of an argument parser's `type=int`."""
    name = _NAMES.get(node.id) if isinstance(node, ast.Name) else None
    return ExpectedType(frozenset({name})) if name in ("bool", "number") else ANY


def field_dataclass(field: SourceField, sources: SourceIndex) -> Class | None:
    """Return the dataclass of a field's annotation, also in `Optional[...]`, or None."""
    for node in ast.walk(field.annotation) if field.annotation else ():
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = sources.find_class_expression(field.module, node)
            if found and sources.fields_of_class(*found):
                return found
    return None


def _alternatives(
    node: ast.expr, module: Module, sources: SourceIndex, depth: int
) -> Iterator[ExpectedType | None]:
    """Yield the alternatives of an annotation; None for an unknown one."""
    if isinstance(node, ast.Constant):
        yield from _constant(node, module, sources, depth)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _alternatives(node.left, module, sources, depth)
        yield from _alternatives(node.right, module, sources, depth)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, module, sources, depth)
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield ExpectedType(frozenset({_NAMES[node.id]}))
    else:
        found = sources.find_expression(module, node) if depth < _DEPTH else None
        if found and isinstance(found[1], ast.Assign):
            yield from _alternatives(found[1].value, found[0], sources, depth + 1)
        elif found and isinstance(found[1], ast.ClassDef):
            yield _enumeration_type(found[1])
        else:
            yield None


def _enumeration_type(owner: ast.ClassDef) -> ExpectedType | None:
    """Return the type for an enumeration of numbers: its names and numbers; None for other classes."""
    values = assigned_values(owner.body).items()
    members = {name: value.value for name, value in values if isinstance(value, ast.Constant)}
    is_plain = base_names(owner) == ["Enum"]
    if not is_plain or not members or any(type(value) is not int for value in members.values()):
        return None
    return ExpectedType(frozenset({"text", "number"}), tuple(members))


def _constant(
    node: ast.Constant, module: Module, sources: SourceIndex, depth: int
) -> Iterator[ExpectedType | None]:
    if node.value is None:
        yield ExpectedType(frozenset({"none"}))
        return
    text = node.value.strip() if isinstance(node.value, str) and depth < _DEPTH else ""
    tree = syntax_tree(text.encode("utf-8", "surrogatepass"))
    inner = tree.body[0] if tree and len(tree.body) == 1 else None
    if isinstance(inner, ast.Expr):
        yield from _alternatives(inner.value, module, sources, depth + 1)
    else:
        yield None


def _subscript(
    node: ast.Subscript, module: Module, sources: SourceIndex, depth: int
) -> Iterator[ExpectedType | None]:
    name = ast.unparse(node.value).rpartition(".")[2]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        for part in parts:
            if isinstance(part, ast.Constant):
                texts = (part.value,) if isinstance(part.value, str) else ()
                yield ExpectedType(frozenset({_type_name(part.value)}), texts)
            else:  # another Literal, by its name
                yield from _alternatives(part, module, sources, depth + 1)
    elif name in ("Optional", "Union"):
        for part in parts:
            yield from _alternatives(part, module, sources, depth)
        if name == "Optional":
            yield ExpectedType(frozenset({"none"}))
    elif name == "Annotated":
        yield from _alternatives(parts[0], module, sources, depth)
    elif name in _NAMES:
        yield ExpectedType(frozenset({_NAMES[name]}))
    else:
        yield None


def _union(parts: Sequence[ExpectedType | None]) -> ExpectedType:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return ANY
    types = frozenset().union(*(part.types for part in known))
    open_text = any("text" in part.types and not part.choices for part in known)
    choices = () if open_text else tuple(dict.fromkeys(c for part in known for c in part.choices))
    return ExpectedType(types, choices)


def _type_name(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "mapping" if isinstance(value, dict) else "list"


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, bool):
        return str(value).lower()
    name = _type_name(value)
    return _DESCRIPTIONS[name] if name in ("list", "mapping") else str(value)
