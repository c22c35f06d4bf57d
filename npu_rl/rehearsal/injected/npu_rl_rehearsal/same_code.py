"""Comparison of a function with the patched one that it replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_ALIKE = (
    "co_code",
    "co_consts",
    "co_names",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_freevars",
    "co_cellvars",
)


def does_the_same(found: Any, file: str, lines: Sequence[int], name: str, module: Mapping[str, Any]) -> bool:
    """Return whether a function has the code of the one that a file has in some lines, and uses the same objects.

    Only the names of its parameters may be others.

    Args:
        found: What is there instead.
        name: Name of the function in the file.
        module: Names of the file's module.
    """
    if not isinstance(found, FunctionType):
        return False
    try:
        whole = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        _alike(found, code, module)
        for code in _codes_in(whole)
        if code.co_name == name and code.co_firstlineno in lines
    )


def _alike(found: FunctionType, code: CodeType, module: Mapping[str, Any]) -> bool:
    theirs = found.__code__
    if any(getattr(theirs, name) != getattr(code, name) for name in _ALIKE):
        return False
    # With a default, a closure or an inner function it may do something else: that is not looked into.
    inner = any(isinstance(one, CodeType) for one in code.co_consts)
    if inner or found.__closure__ or found.__defaults__ or found.__kwdefaults__:
        return False
    missing = object()
    return all(found.__globals__.get(name, missing) is module.get(name, missing) for name in code.co_names)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes_in(one)
