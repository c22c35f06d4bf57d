"""Conversion of pydantic's errors into problems with a line, a key, what is wrong and what is allowed."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from npu_rl.common.yaml_documents.layers import Layer
from npu_rl.common.yaml_documents.problems import KeyPath, Problem, dotted, shown
from npu_rl.common.yaml_documents.suggest import did_you_mean, nearest_names, question

_KEY = "[key]"
_MAPPING = "a mapping (key: value lines)"
_FEW = 6  # keys that are all named beside the likeliest one
_EXPECTED = {"string_type": "text", "list_type": "a list"}
_EXPECTED |= dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _MAPPING)

Suggest = Callable[[KeyPath], str]
"""Returns the dotted key that replaces an unknown one; "" if only similar spellings are to be suggested."""


class KeyFault(NamedTuple):
    """The fault of a value or key, and the full keys that an unknown key may mean."""

    message: str
    suggestions: tuple[str, ...] = ()


def no_suggestion(path: KeyPath) -> str:
    """Suggest nothing but keys with a similar spelling."""
    del path
    return ""


def explain(
    error: ValidationError,
    model: type[BaseModel],
    layer: Layer,
    known: Collection[KeyPath],
    order: Sequence[str],
    suggest: Suggest = no_suggestion,
) -> Iterator[Problem]:
    """Yield each error of `error` as a problem with the file and line of its value.

    Args:
        known: Key paths that already have a problem; errors that follow from those are left out.
        order: The files, each child before its parent.
        suggest: Finds replacements of unknown keys.
    """
    misnamed: set[KeyPath] = set()  # entries that look like a misspelt name of the parent
    details = error.errors(include_url=False)
    replaced = _replaced_keys(details, model, suggest)
    for detail in details:
        if detail["loc"] in known or (detail["type"] == "missing" and dotted(detail["loc"]) in replaced):
            continue
        written = detail["loc"][:-1] if detail["loc"][-1:] == (_KEY,) else detail["loc"]
        path = layer.existing(written)
        if path in misnamed and path != written:
            continue
        origin = layer.origins[path]
        unknown = detail["type"] == "extra_forbidden"
        fault = _unknown_key(detail["loc"], model, suggest) if unknown else KeyFault(_message(detail))
        if detail["type"] == "missing" and (
            renamed_message := _misnamed_entry(detail["loc"], model, layer, order)
        ):
            misnamed.add(path)
            fault = KeyFault(renamed_message)
        yield Problem(origin.file, origin.line, path, *fault)


def _replaced_keys(details: Sequence[ErrorDetails], model: type[BaseModel], suggest: Suggest) -> set[str]:
    """Return the keys that unknown keys probably misspell; that they are missing is the same fault."""
    unknown = (detail["loc"] for detail in details if detail["type"] == "extra_forbidden")
    return {name for path in unknown for name in _unknown_key(path, model, suggest).suggestions}


def _misnamed_entry(
    missing: KeyPath, model: type[BaseModel], layer: Layer, order: Sequence[str]
) -> str | None:
    """Return the message for an incomplete entry whose name its parent lacks; None if the parent has no entries."""
    *holder, name, _ = missing if len(missing) > 2 else ("", "")
    if not holder or not isinstance(name, str) or not _is_mapping_of_models(tuple(holder), model):
        return None
    depth = len(holder)
    own = order.index(layer.origins[missing[:-1]].file)
    inherited = dict.fromkeys(
        str(path[depth])
        for path, origin in layer.origins.items()
        if len(path) > depth and path[:depth] == tuple(holder) and order.index(origin.file) > own
    )
    if not inherited or name in inherited:
        return None
    near = did_you_mean(name, list(inherited))
    new = "" if near else f"; to add it, set its {missing[-1]!r}"
    return f"the parent has no {shown(name)}{near} (its {holder[-1]}: {', '.join(inherited)}){new}"


def _is_mapping_of_models(path: KeyPath, model: type[BaseModel]) -> bool:
    field = _field_at(path, model)
    if field is None or get_origin(_bare(field.annotation)) is not dict:
        return False
    return model_of(get_args(_bare(field.annotation))[-1]) is not None


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return the keys of a model, as they are written in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _message(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "missing":
        return f"required key {detail['loc'][-1]!r} is missing"
    if kind == "too_short":
        return "must not be empty"
    expected = detail["ctx"]["expected"] if kind == "literal_error" else _EXPECTED.get(kind)
    return f"must be {expected}, not {_type_shown(detail['input'])}" if expected else detail["msg"]


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field contains, without `| None` and checks; None if it is not a single model."""
    return _model_at(annotation, ())


def expects_list(path: KeyPath, model: type[BaseModel]) -> bool:
    """Return whether a key path of the model, outside of lists, expects a list."""
    field = _field_at(path, model) if all(isinstance(part, str) for part in path) else None
    return field is not None and get_origin(_bare(field.annotation)) is list


def _field_at(path: KeyPath, model: type[BaseModel]) -> FieldInfo | None:
    holder = _model_at(model, path[:-1])
    fields = holder.model_fields.items() if holder is not None else ()
    return next((field for name, field in fields if (field.alias or name) == path[-1]), None)


def unknown_key(path: KeyPath, model: type[BaseModel], suggest: Suggest = no_suggestion) -> KeyFault | None:
    """Return the fault of a key path that the model does not have; None if it has it."""
    for length in range(1, len(path) + 1):
        holder = _model_at(model, path[: length - 1])
        if holder is not None and path[length - 1] not in keys_of(holder):
            return _unknown_key(path[:length], model, suggest)
    return None


def _unknown_key(path: KeyPath, model: type[BaseModel], suggest: Suggest) -> KeyFault:
    meant = suggest(path)
    if meant:
        return KeyFault(f"unknown key{question([meant])}", (meant,))
    holder = _model_at(model, path[:-1])
    allowed = keys_of(holder) if holder else []
    near = nearest_names(str(path[-1]), allowed, 1)
    listed = "" if near and len(allowed) > _FEW else f" (allowed: {', '.join(allowed)})"
    message = f"unknown key{question(near)}{listed}"
    return KeyFault(message, tuple(dotted((*path[:-1], name)) for name in near))


def _model_at(annotation: Any, path: KeyPath) -> type[BaseModel] | None:
    """Return the model at a key path."""
    annotation = _bare(annotation)
    arguments = get_args(annotation)
    if path and arguments:  # a list or a mapping: its last argument is what it holds
        return _model_at(arguments[-1], path[1:])
    if arguments or not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return None
    if not path:
        return annotation
    fields = {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
    return _model_at(fields[str(path[0])], path[1:]) if path[0] in fields else None


def _bare(annotation: Any) -> Any:
    """Return a type without its Annotated checks and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _bare(next(part for part in get_args(annotation) if part is not type(None)))
    return annotation


def _type_shown(value: object) -> str:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else repr(value)
