"""Strict conversion between frozen dataclasses and JSON: unknown keys, wrong types and invalid texts are errors.

Text fields may be typed `Annotated[str, check]`, where `check` raises ValueError for invalid text: values of a lock
become paths and arguments, and a lock may come from anyone.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

_HINTS: dict[type, dict[str, Any]] = {}


class UnexpectedShape(Exception):
    """JSON that does not match the dataclass; the message contains the path."""


def plain(value: Any) -> Any:
    """Return a dataclass as JSON types. Default values are left out, to keep locks and their diffs short."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            if item != default:
                out[f.name] = plain(item)
        return out
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def build(kind: Any, data: Any, at: str) -> Any:
    """Build a value of type `kind` from JSON data; the inverse of `plain`.

    Raises UnexpectedShape.

    Args:
        at: The path of `data`, for messages.
    """
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Annotated:
        return _checked(build(arguments[0], data, at), arguments[1:], at)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        return build(next(a for a in arguments if a is not type(None)), data, at)
    if origin is tuple:
        return _build_tuple(arguments, data, at)
    if origin is dict:
        if not isinstance(data, dict):
            raise UnexpectedShape(f"{at}: expected a mapping")
        return {build(arguments[0], k, at): build(arguments[1], v, f"{at}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, data, at)
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise UnexpectedShape(f"{at}: expected {kind.__name__}")
    return data


def _checked(value: Any, checks: tuple[Any, ...], at: str) -> Any:
    for check in checks:
        try:
            check(value)
        except ValueError as error:
            raise UnexpectedShape(f"{at}: {error}") from error
    return value


def _build_tuple(arguments: tuple[Any, ...], data: Any, at: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise UnexpectedShape(f"{at}: expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(build(arguments[0], d, f"{at}[{i}]") for i, d in enumerate(data))
    if len(arguments) != len(data):
        raise UnexpectedShape(f"{at}: expected {len(arguments)} items")
    return tuple(build(a, d, f"{at}[{i}]") for i, (a, d) in enumerate(zip(arguments, data, strict=True)))


def _build_dataclass(kind: type[T], data: Any, at: str) -> T:
    if not isinstance(data, dict):
        raise UnexpectedShape(f"{at}: expected a mapping")
    hints = _HINTS.get(kind)
    if hints is None:
        hints = _HINTS[kind] = typing.get_type_hints(kind, include_extras=True)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise UnexpectedShape(f"{at}: unknown key {unknown[0]!r}")
    values = {k: build(hints[k], v, f"{at}.{k}") for k, v in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise UnexpectedShape(f"{at}: {error}") from error
