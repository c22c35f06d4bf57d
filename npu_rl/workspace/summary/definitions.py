"""Definitions in a Python file: classes, functions, methods, attributes, imports and other statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from npu_rl.common.bounded import syntax_tree

Kind = Literal["class", "function", "method", "module attribute", "class attribute", "import", "statement"]

_COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.Match)


@dataclass(frozen=True)
class Definition:
    """One definition in a file, with the properties that distinguish it from another version.

    Attributes:
        name: Qualified within the file: "Class.method". An import has the name it binds, a statement its text.
        line: Its first line, decorators aside.
        head: The signature of a function, the bases of a class, the value of an attribute, the text of an import.
        parameters: Of a function, each with its annotation and default.
        decorators: Their expressions.
        content: A fingerprint of the body of a function, without comments, layout and docstring.
        docstring: The docstring; empty if there is none.
        members: The names of a class's methods and attributes.
    """

    kind: Kind
    name: str
    line: int
    head: str = ""
    parameters: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    content: str = ""
    docstring: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileDefinitions:
    """The definitions of a file in order, and its docstring (may be empty)."""

    definitions: tuple[Definition, ...]
    docstring: str


def definitions_in(content: bytes) -> FileDefinitions | None:
    """Return the definitions of a file; None if it can't be parsed as Python."""
    tree = syntax_tree(content)
    if tree is None:
        return None
    try:
        found = tuple(_defined_by(_without_docstring(tree.body), "", in_class=False))
        return FileDefinitions(found, ast.get_docstring(tree) or "")
    except RecursionError:  # an expression that is nested deeper than it can be printed
        return None


def _defined_by(body: Iterable[ast.stmt], prefix: str, *, in_class: bool) -> Iterator[Definition]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield _function(statement, prefix, "method" if in_class else "function")
        elif isinstance(statement, ast.ClassDef):
            yield from _class(statement, prefix)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from _imports(statement, prefix)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and _bound_names(statement):
            yield from _attributes(statement, prefix, "class attribute" if in_class else "module attribute")
        else:
            yield from _compound(statement, prefix, in_class=in_class)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, kind: Kind) -> Definition:
    start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return Definition(
        kind,
        prefix + node.name,
        node.lineno,
        head=f"{start}({ast.unparse(node.args)}){returned}",
        parameters=tuple(_parameters(node.args)),
        decorators=tuple(map(ast.unparse, node.decorator_list)),
        content="\n".join(map(ast.dump, _without_docstring(node.body))),
        docstring=ast.get_docstring(node) or "",
    )


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    for parameter, default in zip(positional, [*[None] * without, *arguments.defaults], strict=True):
        yield _parameter(parameter, default)
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(parameter, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if parameter.annotation else "="
    return ast.unparse(parameter) + (f"{equals}{ast.unparse(default)}" if default else "")


def _class(node: ast.ClassDef, prefix: str) -> Iterator[Definition]:
    own = f"{prefix}{node.name}."
    members = list(_defined_by(_without_docstring(node.body), own, in_class=True))
    bases = [ast.unparse(base) for base in node.bases]
    bases += [f"{word.arg}={ast.unparse(word.value)}" if word.arg else "**" for word in node.keywords]
    yield Definition(
        "class",
        prefix + node.name,
        node.lineno,
        head=f"({', '.join(bases)})",
        decorators=tuple(map(ast.unparse, node.decorator_list)),
        docstring=ast.get_docstring(node) or "",
        members=tuple(member.name.removeprefix(own) for member in members if member.kind != "statement"),
    )
    yield from members


def _imports(node: ast.Import | ast.ImportFrom, prefix: str) -> Iterator[Definition]:
    start = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    for item in node.names:
        renamed = f" as {item.asname}" if item.asname else ""
        text = f"{start}import {item.name}{renamed}"
        name = text if item.name == "*" else prefix + (item.asname or item.name)
        yield Definition("import", name, node.lineno, head=text)


def _attributes(node: ast.Assign | ast.AnnAssign, prefix: str, kind: Kind) -> Iterator[Definition]:
    parts = [node.annotation] if isinstance(node, ast.AnnAssign) else []
    parts += [node.value] if node.value else []
    head = " = ".join(map(ast.unparse, parts))  # "int = 3" for `x: int = 3`, "3" for `x = 3`
    for name in _bound_names(node):
        yield Definition(kind, prefix + name, node.lineno, head=head)


def _compound(statement: ast.stmt, prefix: str, *, in_class: bool) -> Iterator[Definition]:
    """Yield the header lines of an `if`, `try`, `with`, loop or `match`, and the definitions in it.

    Any other statement is yielded whole, as its text.
    """
    if not isinstance(statement, _COMPOUND):
        yield Definition("statement", prefix + " ".join(ast.unparse(statement).split()), statement.lineno)
        return
    yield Definition("statement", prefix + _first_line(statement), statement.lineno)
    for name in ("body", "orelse", "finalbody"):
        yield from _defined_by(getattr(statement, name, ()), prefix, in_class=in_class)
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        line = part.lineno if isinstance(part, ast.ExceptHandler) else part.pattern.lineno
        yield Definition("statement", prefix + _first_line(part), line)
        yield from _defined_by(part.body, prefix, in_class=in_class)


def _first_line(node: ast.AST) -> str:
    if isinstance(node, ast.Try):
        return "try:"
    if isinstance(node, ast.If):  # without the text of what is in it, which may be long
        return f"if {ast.unparse(node.test)}:"
    return ast.unparse(node).lstrip("\n").partition("\n")[0]


def _bound_names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """Return the plain names that an assignment binds; none if it also assigns to other targets."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names: list[str] = []
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        if not all(isinstance(part, ast.Name) for part in parts):
            return []
        names += [part.id for part in parts if isinstance(part, ast.Name)]
    return names


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body
