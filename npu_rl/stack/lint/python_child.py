"""Findings of a separate process in Python before and after a patch: compile errors and undefined names, by pyflakes.

It runs nothing of that Python. The kernel bounds the CPU time of each reply: some files of 100 kB take CPython's
compiler or pyflakes seconds, and neither can be stopped otherwise (8,000 functions with `global a`: 1.5 and 3.6 s).
"""

from __future__ import annotations

import ast
import base64
import json
import signal
import sys
import warnings
from typing import Any

from npu_rl.common.bounded import parse_python

SECONDS = 1.0  # of CPU time for a file, before and after the patch together
_OF_MODULES = ("__cached__",)  # and those that pyflakes knows
_NOT_PYTHON = "it is not Python"  # as parse_python begins


class _NotCompiled(Exception):
    """Python that does not compile here (`is_fault`), or that is too large to try."""

    def __init__(self, why: str, *, is_fault: bool) -> None:
        super().__init__(why)
        self.is_fault = is_fault


def main() -> None:
    """Reply to each line of standard input with a line on standard output, unless SIGPROF ends the process first."""
    from pyflakes import checker, messages  # noqa: F401  before the time of the first file begins

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        asked = json.loads(line)
        before = None if asked["before"] is None else base64.b64decode(asked["before"])
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = examine(before, base64.b64decode(asked["after"]), asked["name"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def examine(before: bytes | None, after: bytes, name: str) -> dict[str, Any]:
    """Return the findings for each side; None for a side that did not need to be examined.

    A side is `{"names": {NAME: [LINE]}}`, or `{"error": WHY, "is_fault": BOOL}` if it does not compile.

    Args:
        name: The file's name: `__init__.py` has a `__path__`, and a stub may use names above their definitions.
    """
    found = _names(after, name)
    if before is None or found.get("names") == {}:  # the usual case takes half the time
        return {"after": found, "before": None}
    return {"after": found, "before": _compiles(before) if "error" in found else _names(before, name)}


def _names(content: bytes, name: str) -> dict[str, Any]:
    try:
        return {"names": _undefined_names(content, name)}
    except _NotCompiled as error:
        return {"error": str(error), "is_fault": error.is_fault}


def _compiles(content: bytes) -> dict[str, Any]:
    try:
        _compiled(content)
    except _NotCompiled as error:
        return {"error": str(error), "is_fault": error.is_fault}
    return {"names": {}}


def _compiled(content: bytes) -> ast.Module:
    """Return the syntax tree of Python that compiles. Raises _NotCompiled."""
    try:
        tree = parse_python(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other people's text
            compile(tree, "patched", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _NotCompiled(f"{error.msg} (line {error.lineno})", is_fault=True) from None
    except (RecursionError, MemoryError):
        raise _NotCompiled("it is nested too deeply", is_fault=False) from None
    except ValueError as error:
        raise _NotCompiled(str(error), is_fault=str(error).startswith(_NOT_PYTHON)) from None
    return tree


def _undefined_names(content: bytes, name: str) -> dict[str, list[int]]:
    """Return the lines that use each undefined name. Raises _NotCompiled."""
    from pyflakes import checker, messages

    tree = _compiled(content)
    try:
        checked = checker.Checker(tree, filename=name)
    except RecursionError:
        raise _NotCompiled("it is nested too deeply", is_fault=False) from None
    finally:
        _forget_parents(tree)
    defined = set(_OF_MODULES)
    if name.endswith(".pyi"):
        defined.update(*(scope for scope in checked.deadScopes if isinstance(scope, checker.ModuleScope)))
    names: dict[str, list[int]] = {}
    for message in checked.messages:
        if isinstance(message, messages.UndefinedName) and message.message_args[0] not in defined:
            names.setdefault(str(message.message_args[0]), []).append(message.lineno)
    return {name: sorted(lines) for name, lines in names.items()}


def _forget_parents(tree: ast.AST) -> None:
    """Remove the parents that pyflakes up to 4.0 sets: operators, shared by all trees, led back into this one."""
    for node in ast.walk(tree):
        for name in [name for name in vars(node) if name.startswith("_pyflakes")]:
            delattr(node, name)
