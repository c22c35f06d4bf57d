"""Faults that a change adds to a Python file: it no longer compiles, or uses names that nothing defines (pyflakes)."""

from __future__ import annotations

import ast
import warnings
from pathlib import PurePosixPath

PYTHON = (".py", ".pyi")
_OF_MODULES = ("__cached__",)  # and those that pyflakes knows


def new_faults(path: str, before: bytes | None, after: bytes) -> list[tuple[str, int, str]]:
    """Return the faults that a file has only after a change, each as a rule, a line of the file and a message.

    Args:
        path: Its name decides: `__init__.py` has a `__path__`, and a stub may use names above their definitions.
        before: None for a new file. One that can't be checked has every fault already.
    """
    try:
        found = _undefined_names(path, after)
    except SyntaxError as error:
        if before is not None and not _compiles(before):
            return []
        return [("python", error.lineno or 0, f"{path} does not compile after the patch: {error.msg}")]
    except (ValueError, RecursionError, MemoryError):  # NUL bytes, or nested too deeply
        return []
    if not found:
        return []
    try:
        old = {} if before is None else _undefined_names(path, before)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        ("names", line, f"line {line} of {path} uses {name}, which nothing there defines or imports")
        for name, line in found.items()
        if name not in old
    ]


def _compiles(content: bytes) -> bool:
    try:
        _compiled(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _compiled(content: bytes) -> ast.Module:
    """Return the syntax tree of Python that compiles. Raises SyntaxError, ValueError, RecursionError, MemoryError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other people's text
        tree = ast.parse(content)
        compile(tree, "patched", "exec", dont_inherit=True)  # finds a `return` outside of functions, too
    return tree


def _undefined_names(path: str, content: bytes) -> dict[str, int]:
    """Return each undefined name with the first line that uses it, top-down."""
    from pyflakes import checker, messages

    tree = _compiled(content)
    try:
        checked = checker.Checker(tree, filename=PurePosixPath(path).name)
    finally:
        for node in ast.walk(
            tree
        ):  # operators are one node in all trees: up to 4.0 pyflakes links it to this one
            for name in [name for name in vars(node) if name.startswith("_pyflakes")]:
                delattr(node, name)
    defined = set(_OF_MODULES)
    if path.endswith(".pyi"):
        defined.update(*(scope for scope in checked.deadScopes if isinstance(scope, checker.ModuleScope)))
    names: dict[str, int] = {}
    for message in sorted(checked.messages, key=lambda message: message.lineno):
        if isinstance(message, messages.UndefinedName) and message.message_args[0] not in defined:
            names.setdefault(str(message.message_args[0]), message.lineno)
    return names
