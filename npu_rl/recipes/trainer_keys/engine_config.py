"""The keys and values of vLLM's configuration classes, such as `compilation_config.cudagraph_mode`.

Only classes that forbid unknown fields are judged: `@config` makes pydantic do so (vllm/config/utils.py:69@v0.23.0).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.trainer_code.source_index import Class, Module, SourceField, SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import assigned_values, base_names, text_of
from npu_rl.recipes.trainer_code.value_types import ANY, field_type
from npu_rl.recipes.trainer_keys.resolution import KeyResolution, RefusedValue, unknown

_FORBIDS = "extra='forbid'"


@dataclass(frozen=True)
class NestedField:
    """A field of a configuration class, with the class."""

    field: SourceField
    owner: ast.ClassDef

    def validators(self) -> list[ast.FunctionDef]:
        """Return the validators that pydantic calls before it checks the value's type."""
        methods = (item for item in self.owner.body if isinstance(item, ast.FunctionDef))
        return [item for item in methods if any(map(self._is_before, item.decorator_list))]

    def _is_before(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "field_validator":
            return False
        modes = [text_of(item.value) for item in node.keywords if item.arg == "mode"]
        return modes == ["before"] and bool({self.field.name, "*"} & set(map(text_of, node.args)))


def find_nested(
    sources: SourceIndex, argument: SourceField, section: str, names: tuple[str, ...]
) -> NestedField | KeyResolution | None:
    """Return the field `argument.names...`, the resolution of an unknown key, or None if it can't be judged.

    Args:
        argument: The engine's argument.
        section: The section of the argument's keys.
        names: The names below the argument.
    """
    field, found = argument, None
    for name in names:
        inner = _class_of(sources, field)
        if inner is None or not _forbids_others(sources, *inner):
            return None
        fields = {key: one for key, one in sources.fields_of_class(*inner).items() if _is_accepted(one)}
        if name not in fields:
            near = nearest(name, fields)
            return unknown(f"vLLM's {inner[1].name} has no field {name}", near and f"{section}.{near}")
        section, field = f"{section}.{name}", fields[name]
        found = NestedField(field, inner[1])
    return found


def resolve_nested(sources: SourceIndex, found: NestedField) -> KeyResolution:
    """Return the resolution of a field, without a type where a validator may change the value first."""
    expected = ANY if found.validators() else field_type(found.field, sources)
    if "number" in expected.types:  # pydantic reads true as 1
        expected = replace(expected, types=expected.types | {"bool"})
    return KeyResolution(True, expected=expected, where=found.field.where)


def find_refused_member(sources: SourceIndex, found: NestedField, value: object) -> RefusedValue | None:
    """Return why a field refuses a text or number that is not a member of its enumeration, or None.

    A text is the value of a member, or the name of one where a validator looks it up by `Enumeration[value.upper()]`.
    """
    enumeration = _class_of(sources, found.field)
    members = _members(enumeration[1]) if enumeration else {}
    if enumeration is None or not members or isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    parts = [item for one in found.validators() for item in ast.walk(one)]
    accepted = {item.value for item in members.values() if isinstance(item, ast.Constant)}
    names = tuple(map(str, accepted))
    if isinstance(value, str) and parts:
        looked_up = f"{enumeration[1].name}[value.upper()]", f"{enumeration[1].name}[mode_name]"
        if not any(isinstance(item, ast.Subscript) and ast.unparse(item) in looked_up for item in parts):
            return None
        special = {item.value for item in parts if isinstance(item, ast.Constant)}
        if value.upper() in members or value.lower() in special:
            return None
        names = tuple(members)
    elif value in accepted:
        return None
    return RefusedValue(value, names, found.field.where, True)


def _class_of(sources: SourceIndex, field: SourceField) -> Class | None:
    """Return the class of an annotation `Class` or `Class | None`, or None."""
    parts = [part for part in _alternatives(field.annotation) if ast.unparse(part) != "None"]
    return sources.find_class_expression(field.module, parts[0]) if len(parts) == 1 else None


def _alternatives(node: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    elif node is not None:
        yield node


def _forbids_others(sources: SourceIndex, module: Module, owner: ast.ClassDef) -> bool:
    """Return whether a decorator (or its function) of a class without bases forbids unknown fields."""
    for node in () if owner.bases else owner.decorator_list:
        called = sources.find_expression(module, node.func if isinstance(node, ast.Call) else node)
        if any(_FORBIDS in ast.unparse(part) for part in (node, *(called or ())[1:])):
            return True
    return False


def _is_accepted(field: SourceField) -> bool:
    """Return whether a field is a constructor argument, unlike one with `field(..., init=False)`."""
    words = field.default.keywords if isinstance(field.default, ast.Call) else []
    return not any(item.arg == "init" and ast.unparse(item.value) == "False" for item in words)


def _members(owner: ast.ClassDef) -> dict[str, ast.expr]:
    """Return the members of an enumeration with their values; empty for other classes."""
    is_enumeration = {"Enum", "IntEnum", "StrEnum"}.intersection(base_names(owner))
    return assigned_values(owner.body) if is_enumeration else {}
