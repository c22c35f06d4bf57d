"""The JSON Schema (draft 2020-12) of a model, for editors.

It accepts whatever the loader accepts. Written here rather than with pydantic's generator, so that the
committed file is the same with every version of pydantic. A file that extends another follows a second
set of definitions, in which no key is required, a null may remove one and a list may add to the parent's.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from npu_rl.common.yaml_documents.layers import APPEND
from npu_rl.common.yaml_documents.scalar_types import OrOne

_Shape = dict[str, Any]
_PART = "Part"


def export_schema(root: type[BaseModel], title: str, *, appends: bool = False) -> str:
    """Return the schema of `root` as JSON text: keys sorted, indent 2, one newline at the end.

    Args:
        appends: Whether lists of a file that extends another may be `{append: [...]}`.
    """
    definitions: dict[str, _Shape] = {}
    full = _model(root, definitions, part=False)
    part = _model(root, definitions, part=True)
    if appends:
        _allow_append(definitions)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "if": {"required": ["extends"]},
        "then": part,
        "else": full,
        "$defs": definitions,
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _allow_append(definitions: dict[str, _Shape]) -> None:
    """Allow `{append: [...]}` for every list of a file that extends another."""
    for name in [name for name in definitions if name.endswith(_PART)]:
        for shape in definitions[name]["properties"].values():
            choices = shape.get("anyOf", [])
            if choices and choices[0].get("type") == "array":
                items = {key: value for key, value in choices[0].items() if key != "description"}
                adding = {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {APPEND: items},
                    "required": [APPEND],
                    "description": "Adds to the parent's list.",
                }
                choices.insert(1, adding)


def _model(model: type[BaseModel], definitions: dict[str, _Shape], part: bool) -> _Shape:
    name = model.__name__ + (_PART if part else "")
    if name not in definitions:
        definitions[name] = {}
        definitions[name] = _object(model, definitions, part)
    return {"$ref": f"#/$defs/{name}"}


def _object(model: type[BaseModel], definitions: dict[str, _Shape], part: bool) -> _Shape:
    properties: dict[str, _Shape] = {}
    required: list[str] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        properties[key] = _described(_field(field, definitions, part), field)
        if part and key != "extends":
            properties[key] = {"anyOf": [properties[key], {"type": "null"}]}
        if field.is_required():
            required.append(key)
    shape: _Shape = {"type": "object", "additionalProperties": False, "properties": properties}
    if model.__doc__:
        shape["description"] = " ".join(model.__doc__.split())
    if part:
        return shape
    if required:
        shape["required"] = sorted(required)
    extra = model.model_config.get("json_schema_extra")
    return {**shape, **extra} if isinstance(extra, dict) else shape


def _field(field: FieldInfo, definitions: dict[str, _Shape], part: bool) -> _Shape:
    explicit = next((item for item in field.metadata if isinstance(item, WithJsonSchema)), None)
    shape = _type(field.annotation, definitions, part)
    if explicit:
        shape = dict(explicit.json_schema or {})
    least = max((getattr(item, "min_length", 0) or 0 for item in field.metadata), default=0)
    if least and not (part and shape.get("type") == "object"):
        shape["minItems" if shape.get("type") == "array" else "minProperties"] = least
    return _or_one(shape, field.metadata)


def _or_one(shape: _Shape, metadata: Iterable[Any]) -> _Shape:
    """Allow a single item in place of a list that is marked with `OrOne`."""
    return {"anyOf": [shape, shape["items"]]} if any(isinstance(i, OrOne) for i in metadata) else shape


def _described(shape: _Shape, field: FieldInfo) -> _Shape:
    return {**shape, "description": field.description} if field.description else shape


def _type(annotation: Any, definitions: dict[str, _Shape], part: bool) -> _Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = _type(arguments[0], definitions, part)  # also defines the models inside
        shape = next((item for item in arguments[1:] if isinstance(item, WithJsonSchema)), None)
        return dict(shape.json_schema or {}) if shape else _or_one(inner, arguments[1:])
    if origin in (Union, types.UnionType):
        return _type(next(item for item in arguments if item is not type(None)), definitions, part)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _type(arguments[0], definitions, part=False)}
    if origin is dict:
        key, value = (_type(item, definitions, part) for item in arguments)
        if part:
            value = {"anyOf": [value, {"type": "null"}]}
        return {"type": "object", "propertyNames": {**key, "type": "string"}, "additionalProperties": value}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation, definitions, part)
    return {}
