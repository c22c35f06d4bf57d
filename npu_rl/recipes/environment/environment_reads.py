"""The environment variables that a code tree reads, and the values that the code around each read accepts.

Nothing of the tree is run. A read is `os.environ.get("NAME")`, `os.environ["NAME"]` or `os.getenv("NAME")`. The code
around it shows the accepted values: `int(...)`, `float(...)`, `... == "1"`, `....lower() in ("true", "1")`, a logger's
level.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npu_rl.recipes.environment.environment_values import (
    ValueCheck,
    compared_switch,
    int_switch,
    number,
    on_if_set,
    one_of,
    whole_number,
)
from npu_rl.recipes.trainer_code.source_files import source_texts
from npu_rl.recipes.trainer_code.source_index import Parser
from npu_rl.recipes.trainer_code.syntax_nodes import assigned_values, last_name, text_of

_READ = re.compile(rb"\benviron\b|\bgetenv\b")
_QUOTED = re.compile(rb"""["']([A-Z][A-Z0-9_]{4,})["']""")
_TEXT_METHODS: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "strip": str.strip}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "WARN", "FATAL", "NOTSET")
_CONVERSION_ERRORS = frozenset({"ValueError", "TypeError", "Exception", "BaseException"})
_TEXT_TESTS = frozenset({"isdigit", "isdecimal", "isnumeric", "isalpha"})


@dataclass(frozen=True)
class VariableRead:
    """One read of an environment variable.

    Attributes:
        where: "file:line" in the code folder.
        values: The check of its value; None if the code does not show what it accepts.
    """

    name: str
    where: str
    values: ValueCheck | None = None


class EnvironmentReads:
    """The reads in a code folder.

    The files `*/envs.py`, in which vLLM lists its variables, are parsed first; most variables are found there.
    """

    def __init__(self, code: Path) -> None:
        self._code = code
        self._parser = Parser(code)

    def reads_of(self, name: str) -> list[VariableRead]:
        """Return the reads of one variable: those in `*/envs.py` if there are any, else those in all files."""
        listed = [read for read in self._envs_reads if read.name == name]
        return listed or [read for read in self._reads_mentioning(name) if read.name == name]

    def mentions(self, name: str) -> bool:
        """Return whether any Python file of the tree contains the name, even in a comment, and so may read it."""
        if any(read.name == name for read in self._envs_reads):
            return True
        word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
        return any(word.search(text) for text in self._files.values())

    @cached_property
    def names(self) -> frozenset[str]:
        """Strings that look like variable names, in files that read environment variables."""
        found = {read.name for read in self._envs_reads}
        for text in self._files.values():
            if _READ.search(text):
                found.update(match.decode() for match in _QUOTED.findall(text))
        return frozenset(found)

    @cached_property
    def _envs_reads(self) -> list[VariableRead]:
        return [
            read
            for path, text in source_texts(self._code.glob("*/envs.py")).items()
            for read in self._reads_in(text, path)
        ]

    @cached_property
    def _files(self) -> dict[Path, bytes]:
        return source_texts(self._code.rglob("*.py"))

    def _reads_mentioning(self, name: str) -> Iterator[VariableRead]:
        for path, text in self._files.items():
            if name.encode() in text and _READ.search(text):
                yield from self._reads_in(text, path)

    def _reads_in(self, text: bytes, path: Path) -> list[VariableRead]:
        tree = self._parser.parse(text)
        file = path.relative_to(self._code).as_posix()
        return list(_FileReads(tree, file).reads()) if tree else []


class _FileReads:
    """The reads in one file."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self._tree = tree
        self._file = file
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._constants = _constants(tree)
        self._converters = _converters(tree)

    def reads(self) -> Iterator[VariableRead]:
        for node in ast.walk(self._tree):
            name = self._variable_read(node)
            if name is not None and isinstance(node, ast.expr):
                values = self._check_around(node)
                yield VariableRead(name, f"{self._file}:{node.lineno}", values)

    def _variable_read(self, node: ast.AST) -> str | None:
        """Return the name of the variable that an expression reads, or None if it reads none."""
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value):
            key = node.slice
        elif isinstance(node, ast.Call) and node.args:
            called = last_name(node.func)
            of_environ = isinstance(node.func, ast.Attribute) and _is_environ(node.func.value)
            if called == "getenv" or (called in ("get", "pop") and of_environ):
                key = node.args[0]
        return self._constants.get(key.id) if isinstance(key, ast.Name) else text_of(key)

    def _check_around(self, node: ast.expr) -> ValueCheck | None:
        """Return the check that the code around a read implies."""
        changes: list[Callable[[str], str]] = []
        while True:
            parent = self._parents.get(node)
            if isinstance(parent, ast.Attribute) and parent.attr in _TEXT_METHODS:
                called = self._parents.get(parent)
                if not isinstance(called, ast.Call):
                    return None
                changes.append(_TEXT_METHODS[parent.attr])
                node = called
            elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.Or):
                node = parent
            else:
                break
        if isinstance(parent, ast.Call) and node in parent.args:
            return self._check_of_call(parent, changes)
        if isinstance(parent, ast.Compare):
            return _check_of_comparison(parent, node, changes)
        target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
        return self._check_of_variable(parent, target.id) if parent and isinstance(target, ast.Name) else None

    def _check_of_call(self, call: ast.Call, changes: list[Callable[[str], str]]) -> ValueCheck | None:
        called = last_name(call.func)
        kind = self._converters.get(called, called) if isinstance(call.func, ast.Name) else called
        if kind in ("int", "float") and len(call.args) == 1 and not call.keywords:
            if self._is_guarded(call):
                return None
            if kind == "float":
                return number()
            parent = self._parents.get(call)
            is_switch = isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "bool"
            return int_switch() if is_switch else whole_number()
        if kind == "bool" and isinstance(call.func, ast.Name):
            return on_if_set()
        if called == "setLevel" and isinstance(call.func, ast.Attribute) and not self._is_guarded(call):
            return one_of(*_LEVELS, fold=str.upper in changes, certain=True)
        return None

    def _check_of_variable(self, statement: ast.AST, name: str) -> ValueCheck | None:
        """Return the check implied by a later conversion of a local variable that is assigned once."""
        scope = self._scope(statement)
        uses = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
        if sum(isinstance(node.ctx, ast.Store) for node in uses) != 1:
            return None
        for node in uses:
            parent = self._parents.get(node)
            if isinstance(parent, ast.Call) and node in parent.args:
                values = self._check_of_call(parent, [])
                if values is not None:
                    return values
        return None

    def _scope(self, node: ast.AST) -> ast.AST:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        while node in self._parents and not isinstance(node, functions):
            node = self._parents[node]
        return node

    def _is_guarded(self, node: ast.AST) -> bool:
        """Return whether the code handles text that can't be converted: catches the error or tests the text."""
        while node in self._parents:
            parent = self._parents[node]
            handlers = parent.handlers if isinstance(parent, ast.Try) and node in parent.body else []
            tests = parent.values if isinstance(parent, ast.BoolOp) else []
            if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and node is not parent.test:
                tests = [parent.test]
            if any(map(_suppresses_conversion_error, handlers)) or any(map(_tests_text, tests)):
                return True
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside = (inner.test for inner in ast.walk(parent) if isinstance(inner, ast.If))
                return any(map(_tests_text, inside))
            node = parent
        return False


def _is_environ(node: ast.expr) -> bool:
    return last_name(node) == "environ"


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the top-level names of a module that are bound to a string."""
    values = assigned_values(tree.body).items()
    return {name: text for name, value in values if (text := text_of(value)) is not None}


def _converters(tree: ast.Module) -> dict[str, str]:
    """Return the functions of a module that convert their only argument, such as `maybe_convert_int` -> "int"."""
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


def _check_of_comparison(
    node: ast.Compare, read: ast.expr, changes: list[Callable[[str], str]]
) -> ValueCheck | None:
    if len(node.ops) != 1:
        return None
    operator, other = node.ops[0], node.comparators[0] if node.left is read else node.left
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        texts = [other]
    elif isinstance(operator, (ast.In, ast.NotIn)) and node.left is read:
        texts = other.elts if isinstance(other, (ast.List, ast.Tuple, ast.Set)) else []
    else:
        return None
    words = {word for text in texts if (word := text_of(text)) is not None}
    if not words or len(words) != len(texts):
        return None

    def change(value: str) -> str:
        for function in changes:
            value = function(value)
        return value

    no = {word for word in words if word.lower() in ("0", "false", "no", "off")}
    return compared_switch(frozenset(words - no), frozenset(no), change)


def _suppresses_conversion_error(handler: ast.ExceptHandler) -> bool:
    """Return whether an except clause catches the error of int() and does not raise."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    caught = {getattr(name, "id", "") for name in named if name is not None}
    catches = handler.type is None or bool(caught & _CONVERSION_ERRORS)
    return catches and not any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _tests_text(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _TEXT_TESTS for node in ast.walk(test))
