"""Environment variables that a code tree reads, and what the code around each read takes. Nothing of it is run.

A read is `os.environ.get("NAME")`, `os.environ["NAME"]` or `os.getenv("NAME")`. What is done with the text at that
place says what it may be: `int(...)`, `float(...)`, `... == "1"`, `....lower() in ("true", "1")`, a logger's level.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npu_rl.judgement.environment_values import (
    Values,
    any_text,
    compared,
    number,
    one_of,
    switch_number,
    whole,
)
from npu_rl.trainer_code.source_files import source_files
from npu_rl.trainer_code.source_index import parse

_READER = re.compile(rb"\benviron\b|\bgetenv\b")
_QUOTED = re.compile(rb"""["']([A-Z][A-Z0-9_]{4,})["']""")
_CHANGES: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "strip": str.strip}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "WARN", "FATAL", "NOTSET")
_CATCHES = frozenset({"ValueError", "TypeError", "Exception", "BaseException"})
_LOOKS = frozenset({"isdigit", "isdecimal", "isnumeric", "isalpha"})


@dataclass(frozen=True)
class VariableRead:
    """One read. values: what it takes, None if the code there does not say. where: file:line."""

    name: str
    where: str
    values: Values | None = None


class EnvironmentReads:
    """The reads in a code folder. Its `*/envs.py`, vLLM's lists of variables, are parsed first, and often enough."""

    def __init__(self, code: Path) -> None:
        self._code = code

    def of(self, name: str) -> list[VariableRead]:
        """The reads of one variable: those of the lists, else of any file."""
        listed = [read for read in self._listed if read.name == name]
        return listed or [read for read in self._scanned(name) if read.name == name]

    def names_it(self, name: str) -> bool:
        """Whether any Python file of the tree has the name, in a comment even: then it may be read some way."""
        if any(read.name == name for read in self._listed):
            return True
        word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
        return any(word.search(text) for text in self._texts.values())

    @cached_property
    def names(self) -> frozenset[str]:
        """What looks like the name of a variable in the files that read any."""
        found = {read.name for read in self._listed}
        for text in self._texts.values():
            if _READER.search(text):
                found.update(match.decode() for match in _QUOTED.findall(text))
        return frozenset(found)

    @cached_property
    def _listed(self) -> list[VariableRead]:
        return [
            read
            for path in source_files(self._code.glob("*/envs.py"))
            for read in self._in(path.read_bytes(), path)
        ]

    @cached_property
    def _texts(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in source_files(self._code.rglob("*.py"))}

    def _scanned(self, name: str) -> Iterator[VariableRead]:
        for path, text in self._texts.items():
            if name.encode() in text and _READER.search(text):
                yield from self._in(text, path)

    def _in(self, text: bytes, path: Path) -> list[VariableRead]:
        tree = parse(text)
        file = path.relative_to(self._code).as_posix()
        return list(_File(tree, file).reads()) if tree else []


class _File:
    """The reads of one file."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self._tree = tree
        self._file = file
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._constants = _constants(tree)
        self._converters = _converters(tree)

    def reads(self) -> Iterator[VariableRead]:
        for node in ast.walk(self._tree):
            name = self._name(node)
            if name is not None and isinstance(node, ast.expr):
                values = self._values(node)
                yield VariableRead(name, f"{self._file}:{node.lineno}", values)

    def _name(self, node: ast.AST) -> str | None:
        """The variable that an expression reads."""
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value):
            key = node.slice
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            of_environ = isinstance(function, ast.Attribute) and _is_environ(function.value)
            if called == "getenv" or (called in ("get", "pop") and of_environ):
                key = node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return key.value
        return self._constants.get(key.id) if isinstance(key, ast.Name) else None

    def _values(self, node: ast.expr) -> Values | None:
        """What the code around a read takes."""
        changes: list[Callable[[str], str]] = []
        while True:
            above = self._above.get(node)
            if isinstance(above, ast.Attribute) and above.attr in _CHANGES:
                called = self._above.get(above)
                if not isinstance(called, ast.Call):
                    return None
                changes.append(_CHANGES[above.attr])
                node = called
            elif isinstance(above, ast.BoolOp) and isinstance(above.op, ast.Or):
                node = above
            else:
                break
        if isinstance(above, ast.Call) and node in above.args:
            return self._converted(above, changes)
        if isinstance(above, ast.Compare):
            return _of_comparison(above, node, changes)
        if (
            isinstance(above, ast.Assign)
            and len(above.targets) == 1
            and isinstance(above.targets[0], ast.Name)
        ):
            return self._assigned(above, above.targets[0].id)
        return None

    def _converted(self, call: ast.Call, changes: list[Callable[[str], str]]) -> Values | None:
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        kind = self._converters.get(called, called) if isinstance(call.func, ast.Name) else called
        if kind in ("int", "float") and len(call.args) == 1 and not call.keywords:
            if self._is_guarded(call):
                return None
            if kind == "float":
                return number()
            above = self._above.get(call)
            is_switch = isinstance(above, ast.Call) and getattr(above.func, "id", "") == "bool"
            return switch_number() if is_switch else whole()
        if kind == "bool" and isinstance(call.func, ast.Name):
            return any_text()
        if called == "setLevel" and isinstance(call.func, ast.Attribute) and not self._is_guarded(call):
            return one_of(*_LEVELS, fold=str.upper in changes, certain=True)
        return None

    def _assigned(self, statement: ast.Assign, name: str) -> Values | None:
        """What a variable of the function, assigned once, is converted to later."""
        scope = self._scope(statement)
        uses = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
        if sum(isinstance(node.ctx, ast.Store) for node in uses) != 1:
            return None
        for node in uses:
            above = self._above.get(node)
            if isinstance(above, ast.Call) and node in above.args:
                values = self._converted(above, [])
                if values is not None:
                    return values
        return None

    def _scope(self, node: ast.AST) -> ast.AST:
        while node in self._above and not isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        ):
            node = self._above[node]
        return node

    def _is_guarded(self, node: ast.AST) -> bool:
        """Whether a text that can't be converted is dealt with: caught, or looked at first."""
        while node in self._above:
            above = self._above[node]
            if isinstance(above, ast.Try) and node in above.body and any(map(_swallows, above.handlers)):
                return True
            if (
                isinstance(above, (ast.If, ast.IfExp, ast.While))
                and node is not above.test
                and _looks(above.test)
            ):
                return True
            if isinstance(above, ast.BoolOp) and any(map(_looks, above.values)):
                return True
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return any(isinstance(inner, ast.If) and _looks(inner.test) for inner in ast.walk(above))
            node = above
        return False


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _constants(tree: ast.Module) -> dict[str, str]:
    """The names at the top of a module that stand for a text."""
    return {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _converters(tree: ast.Module) -> dict[str, str]:
    """The functions of a module that convert their one argument: maybe_convert_int is int."""
    found = {}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and len(function.args.args) == 1:
            argument = function.args.args[0].arg
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                    called = getattr(node.value.func, "id", "")
                    given = node.value.args
                    if called in ("int", "float") and given and getattr(given[0], "id", "") == argument:
                        found[function.name] = called
    return found


def _of_comparison(node: ast.Compare, read: ast.expr, changes: list[Callable[[str], str]]) -> Values | None:
    if len(node.ops) != 1:
        return None
    operator, other = node.ops[0], node.comparators[0] if node.left is read else node.left
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        texts = [other]
    elif isinstance(operator, (ast.In, ast.NotIn)) and node.left is read:
        texts = other.elts if isinstance(other, (ast.List, ast.Tuple, ast.Set)) else []
    else:
        return None
    words = {text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)}
    if not words or len(words) != len(texts):
        return None

    def change(value: str) -> str:
        for function in changes:
            value = function(value)
        return value

    no = {word for word in words if word.lower() in ("0", "false", "no", "off")}
    return compared(frozenset(words - no), frozenset(no), change)


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether it catches what int() raises and goes on."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    caught = {getattr(name, "id", "") for name in named if name is not None}
    return (handler.type is None or bool(caught & _CATCHES)) and not any(
        isinstance(node, ast.Raise) for node in ast.walk(handler)
    )


def _looks(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _LOOKS for node in ast.walk(test))
