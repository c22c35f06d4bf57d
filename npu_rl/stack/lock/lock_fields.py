"""Types of a lock's fields, and their strict conversion from and to JSON.

Unknown keys, wrong types and invalid texts are errors: values of a lock become paths, refs and arguments of git, and
a lock may come from anyone. A text field is typed `Annotated[str, check]`, where `check` raises ValueError. The checks
are stricter than a manifest's where possible, since a program writes the lock.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import types
import typing
import zlib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.text_checks import MAXIMUM_DEPTH, check_git_url, invalid_name_reason


def _pattern(pattern: str, what: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if compiled.fullmatch(value) is None:
            raise ValueError(f"{value[:80]!r} is not {what}")
        return value

    return check


def check_upstream_path(value: str) -> str:
    """Check a path of an upstream tree: any name git stores, but none that points outside the tree."""
    why = next(filter(None, map(invalid_name_reason, value.split("/"))), None)
    if why or "\0" in value or value.count("/") > MAXIMUM_DEPTH:
        raise ValueError(f"{value[:80]!r} is not a path inside a repository" + (f": {why}" if why else ""))
    return value


def _check_value(value: str) -> str:
    """Check the value of a variable, which goes into scripts and environments: any text that YAML accepts."""
    if _CONTROL.search(value):
        raise ValueError(f"{value[:80]!r} contains a control character")
    return value


def _check_requirement(value: str) -> str:
    """Check one line that pip reads as a requirement, not as an option."""
    text_checks.check_text(value)
    if not value.strip()[0].isalnum():
        raise ValueError(f"{value[:80]!r} is not a requirement")
    return value


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

Text = Annotated[str, text_checks.check_text]
Device = Annotated[str, _pattern("npu|cuda|cpu", "a device")]
Requirement = Annotated[str, _check_requirement]
Value = Annotated[str, _check_value]
Name = Annotated[str, text_checks.check_name]
Id = Annotated[str, text_checks.check_pin]
Sha256 = Annotated[str, _pattern(r"[0-9a-f]{64}", "a SHA-256")]
Mode = Annotated[str, _pattern(r"100644|100755|120000|160000|40000", "a mode of git")]
Ref = Annotated[str, text_checks.check_full_ref]
Url = Annotated[str, check_git_url]
# PEP 440 in full is for `packaging`, which a verify does not import.
Release = Annotated[
    str, _pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*", "name==version")
]
Version = Annotated[str, _pattern(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", "a version")]
Distribution = Annotated[str, text_checks.check_distribution]
TreePath = Annotated[str, text_checks.check_path]
UpstreamPath = Annotated[str, check_upstream_path]
Directory = Annotated[str, text_checks.check_directory]
Glob = Annotated[str, text_checks.check_glob]
Variable = Annotated[str, text_checks.check_variable]
Checkout = Annotated[str, _pattern("take|full", "take or full")]
How = Annotated[str, _pattern("merge|pick", "merge or pick")]
Eol = Annotated[str, _pattern("keep|lf", "keep or lf")]
Repair = Annotated[str, _pattern("none|final-newline", "none or final-newline")]
Outcome = Annotated[str, _pattern("passed|failed", "passed or failed")]
Day = Annotated[str, _pattern(r"\d{4}-\d\d-\d\d", "a date such as 2026-01-31")]


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


MiB = 1024 * 1024


class Allowance:
    """Limit on a lock's unpacked size in bytes: 32 MB of text can contain 24 GB of zeros.

    each: of one text. total: of all texts that are unpacked under one allowance.
    """

    def __init__(self, *, each: int, total: int) -> None:
        self._each, self._total, self._left = each, total, total

    def unpack(self, text: str) -> bytes:
        """Unpack the text of `pack_bytes`. Raises ValueError for invalid text, or beyond the allowance."""
        unpacking = zlib.decompressobj()
        try:
            data = unpacking.decompress(base64.b64decode(text), self._each)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not unpacking.eof:
            raise ValueError(f"it unpacks to more than {self._each} bytes" if data else "it is truncated")
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"the lock unpacks to more than {self._total} bytes")
        return data


def pack_bytes(data: bytes) -> str:
    """Return bytes as text for a lock."""
    return base64.b64encode(zlib.compress(data, 9)).decode()
