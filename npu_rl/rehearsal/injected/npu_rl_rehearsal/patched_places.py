"""Check that functions and classes changed by patches aren't replaced by monkey-patching at import.

Everything is imported in one fork, as in a trainer that has the engine and the adaptors in one process.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from .faults import CatchAll, describe_error
from .forks import run_forks
from .same_code import does_the_same

_LOOKED_AT = 200  # objects behind one name: wrappers, and what they close over
# Attributes in which wrappers keep what they wrap: functools, torch, triton, ray and our own.
_WITHIN = ("__wrapped__", "__func__", "func", "fget", "fset", "fn", "_function", "py_func", "_fn")


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Import job["adaptors"] and the modules of job["places"]. Yields a line per failed import and per place.

    A last line has the outcome of the fork; its output ends with the module whose import was its last act.
    """
    code = Path(job["code"])
    # No prefix for byte code: all installed packages would be compiled again. sitecustomize keeps that of the tree out.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bodies = {"places": partial(_look, code, job["adaptors"], job["places"])}
    for _, found in run_forks(bodies, code=code, limit=job["limit"], at_once=1):
        yield from found.pop("lines", [])
        yield {"fork": found}


def _look(code: Path, adaptors: list[str], places: list[dict[str, Any]]) -> dict[str, Any]:
    wanted = dict.fromkeys([*adaptors, *(place["module"] for place in places)])
    lines: list[dict[str, Any]] = []
    for module in wanted:
        print(module, flush=True)
        with CatchAll() as attempt:
            importlib.import_module(module)
        if attempt.problem is not None:
            lines.append({"failed": module, "outcome": "raised", **describe_error(attempt.problem, code)})
    failed = {line["failed"] for line in lines}
    lines += [{"place": place, **_state(place, code)} for place in places if place["module"] not in failed]
    return {"lines": lines}


def _state(place: Mapping[str, Any], code: Path) -> dict[str, Any]:
    """Return a place's `state`, and its replacement as `by`.

    It is patched, wrapped (the patched code is called by other), same (by other code that does the same), replaced,
    missing or unclear.
    """
    module = sys.modules[place["module"]]
    file = os.path.realpath(code / place["file"])
    if os.path.realpath(getattr(module, "__file__", None) or "") != file:
        return {"state": "replaced", "by": getattr(module, "__file__", None)}
    found: Any = module
    for part in place["name"].split(".") if place["name"] else ():
        found = _attribute(found, part)
        if found is None:
            return {"state": "missing", "by": None}
    if not place["function"]:
        return _state_of_class(found, place["module"]) if place["name"] else {"state": "patched"}
    lines = range(place["first"], place["last"] + 1)
    codes = list(_codes(found))
    if not codes:
        return {"state": "unclear", "by": type(found).__name__}
    at = [number for number, one in enumerate(codes) if _is_at(one, file, lines)]
    if not at:
        name = place["name"].rpartition(".")[2]
        same = does_the_same(found, file, lines, name, vars(module))
        return {"state": "same" if same else "replaced", "by": _place_of(codes[0], code)}
    own = not at[0] or place["decorated"]  # by what the source itself says
    return {"state": "patched"} if own else {"state": "wrapped", "by": _place_of(codes[0], code)}


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute as stored in its owner, without calling descriptors; None if it is missing."""
    own = getattr(owner, "__dict__", {})
    if name in own:
        return own[name]
    for behind in _behind(owner):
        if name in getattr(behind, "__dict__", {}):
            return behind.__dict__[name]
    with CatchAll():
        return getattr(owner, name, None)
    return None


def _state_of_class(found: Any, module: str) -> dict[str, Any]:
    classes = [one for one in (found, *_behind(found)) if isinstance(one, type)]
    if not classes:
        return {"state": "unclear", "by": type(found).__name__}
    own = [one for one in classes if one.__module__ == module]
    return {"state": "patched"} if own else {"state": "replaced", "by": classes[0].__module__}


def _codes(found: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions it wraps, nearest first."""
    for one in (found, *_behind(found)):
        if isinstance(one, FunctionType):
            yield one.__code__


def _behind(found: Any) -> Iterator[Any]:
    """Yield the objects that an object wraps, nearest first."""
    waiting, seen = [found], {id(found)}
    while waiting and len(seen) < _LOOKED_AT:
        one = waiting.pop(0)
        for inner in _within(one):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
                yield inner


def _within(one: Any) -> list[Any]:
    found = []
    own = getattr(one, "__dict__", {})
    for name in _WITHIN:
        with CatchAll():
            inner = own[name] if name in own else getattr(type(one), name, None) and getattr(one, name)
            found += [inner] if callable(inner) else []
    actor = getattr(own.get("__ray_metadata__"), "modified_class", None)
    found += [actor] if actor is not None else []
    if isinstance(one, FunctionType):
        for cell in one.__closure__ or ():
            with CatchAll():  # an empty cell
                found += [cell.cell_contents] if callable(cell.cell_contents) else []
    if isinstance(one, type):  # ray makes an actor's class from the one that is written
        found += [base for base in one.__bases__ if base.__qualname__ == one.__qualname__]
    return found


def _is_at(code: CodeType, file: str, lines: range) -> bool:
    return os.path.realpath(code.co_filename) == file and code.co_firstlineno in lines


def _place_of(code: CodeType, folder: Path) -> str:
    file = Path(os.path.realpath(code.co_filename))
    root = Path(os.path.realpath(folder))
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}:{code.co_firstlineno}"
