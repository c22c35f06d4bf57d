"""The modules and classes of a code tree, from its source text; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source, source_texts, too_much_code
from npu_rl.recipes.trainer_code.syntax_nodes import assigned_values, last_name

_MAX_DEPTH = 12
_LARGEST_SUM = 16 << 20  # bytes


@dataclass(frozen=True)
class Module:
    """One parsed file.

    Attributes:
        dotted: Its name, such as `package.module`.
        file: The path relative to the code.
        package: Whether it is an `__init__.py`.
        names: The statements that define or import each name of the top level.
        stars: The modules from which it imports `*`.
    """

    dotted: str
    file: str
    package: bool
    names: Mapping[str, ast.stmt]
    stars: tuple[str, ...]


Class = tuple[Module, ast.ClassDef]
"""A class, and the module that defines it."""


@dataclass(frozen=True)
class SourceField:
    """A field of a dataclass."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None
    module: Module
    line: int

    @property
    def where(self) -> str:
        """The place as file:line."""
        return f"{self.module.file}:{self.line}"


class Parser:
    """Parser for the Python files of one tree, with a limit on their total size."""

    def __init__(self, code: Path) -> None:
        self._code = code
        self._left = _LARGEST_SUM

    def parse(self, content: bytes) -> ast.Module | None:
        """Return a file's syntax tree; None if it is invalid or too large. Raises WorkspaceError beyond the limit."""
        self._left -= len(content)
        if self._left < 0:
            raise too_much_code(
                self._code, "The recipe names more or larger files than any supported stack has."
            )
        return syntax_tree(content)


class SourceIndex:
    """The modules of a code folder. Each file is read and parsed once, on demand."""

    def __init__(self, code: Path) -> None:
        self.code = code
        self._modules: dict[str, Module | None] = {}
        self._texts: dict[str, dict[str, bytes]] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._parser = Parser(code)

    def texts(self, folder: str) -> Mapping[str, bytes]:
        """Return every Python file below a folder of the code, by its path relative to the code."""
        if folder not in self._texts:
            texts = source_texts((self.code / folder).rglob("*.py"))
            self._texts[folder] = {
                path.relative_to(self.code).as_posix(): text for path, text in texts.items()
            }
        return self._texts[folder]

    def tree(self, file: str) -> ast.Module | None:
        """Return the syntax tree of a file named relative to the code, or None if it is not a Python file."""
        if file not in self._trees:
            known = next((texts[file] for texts in self._texts.values() if file in texts), None)
            content = known if known is not None else read_source(self.code / file)
            self._trees[file] = self._parser.parse(content) if content is not None else None
        return self._trees[file]

    def content(self, module: Module) -> bytes:
        """Return the bytes of a module's file; empty if the file has disappeared."""
        return read_source(self.code / module.file) or b""

    def module(self, dotted: str) -> Module | None:
        """Return the module, or None if the folder has no such readable file."""
        if dotted not in self._modules:
            self._modules[dotted] = self._parse(dotted)
        return self._modules[dotted]

    def find(self, dotted: str) -> tuple[Module, ast.stmt] | None:
        """Return the class, function or assignment `package.module.Name`, through imports, or None."""
        holder, _, name = dotted.rpartition(".")
        module = self.module(holder) if holder else None
        return self.find_in_module(module, name) if module else None

    def find_in_module(self, module: Module, name: str, depth: int = 0) -> tuple[Module, ast.stmt] | None:
        """Return the definition of a name at the top level of a module, through imports, or None."""
        statement = module.names.get(name)
        if depth > _MAX_DEPTH:
            return None
        if isinstance(statement, ast.ImportFrom):
            source = self.module(_imported_module(module, statement))
            return self.find_in_module(source, _real_name(statement, name), depth + 1) if source else None
        if statement is not None:
            return module, statement
        for star in module.stars:
            source = self.module(star)
            found = self.find_in_module(source, name, depth + 1) if source else None
            if found:
                return found
        return None

    def find_class(self, dotted: str) -> Class | None:
        """Return the class `package.module.Name`, through imports, or None."""
        return _as_class(self.find(dotted))

    def find_class_expression(self, module: Module, node: ast.expr) -> Class | None:
        """Return the class `Name` or `module.Name` of a module's text, or None."""
        return _as_class(self.find_expression(module, node))

    def fields(self, dotted: str) -> dict[str, SourceField] | None:
        """Return the fields of a dataclass, inherited ones first; None if the tree has no such class."""
        found = self.find_class(dotted)
        return self.fields_of_class(*found) if found else None

    def fields_of_class(self, module: Module, node: ast.ClassDef, depth: int = 0) -> dict[str, SourceField]:
        """Return the fields of a class, with those inherited from classes in the tree first."""
        result: dict[str, SourceField] = {}
        for base in reversed(node.bases):
            if depth < _MAX_DEPTH and (found := self.find_class_expression(module, base)):
                result.update(self.fields_of_class(*found, depth + 1))
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                name, annotation = item.target.id, item.annotation
                if not _is_class_variable(annotation):
                    result[name] = SourceField(name, annotation, item.value, module, item.lineno)
        return result

    def find_expression(self, module: Module, node: ast.expr) -> tuple[Module, ast.stmt] | None:
        """Return the definition of `Name` or `module.Name` in a module's text, or None."""
        if isinstance(node, ast.Name):
            return self.find_in_module(module, node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            statement = module.names.get(node.value.id)
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                real = _real_name(statement, node.value.id)
                if isinstance(statement, ast.ImportFrom):
                    real = f"{_imported_module(module, statement)}.{real}"
                return self.find(f"{real}.{node.attr}")
        return None

    def _parse(self, dotted: str) -> Module | None:
        base = dotted.replace(".", "/")
        for file in (f"{base}.py", f"{base}/__init__.py"):
            tree = self.tree(file)
            if tree is not None:
                module = Module(dotted, file, file != f"{base}.py", {}, ())
                names, stars = _top_level(tree, module)
                return Module(module.dotted, module.file, module.package, names, stars)
        return None


def _as_class(found: tuple[Module, ast.stmt] | None) -> Class | None:
    return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None


def _real_name(statement: ast.Import | ast.ImportFrom, name: str) -> str:
    """Return the original name of the import that a statement binds to `name`."""
    return next(item.name for item in statement.names if (item.asname or item.name) == name)


def _top_level(tree: ast.Module, module: Module) -> tuple[dict[str, ast.stmt], tuple[str, ...]]:
    names: dict[str, ast.stmt] = {}
    stars: list[str] = []
    for statement in _statements(tree.body):
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            stars.append(_imported_module(module, statement))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for item in statement.names:
                names[item.asname or item.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
        else:
            names |= dict.fromkeys(assigned_values([statement]), statement)
    return names, tuple(stars)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those under `if` and `try` (TYPE_CHECKING, optional imports)."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [item for handler in statement.handlers for item in handler.body]
            yield from _statements([*handlers, *statement.orelse, *statement.body])


def _imported_module(module: Module, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.dotted.split(".")
    parts = parts[: len(parts) - statement.level + module.package]
    return ".".join([*parts, statement.module] if statement.module else parts)


def _is_class_variable(annotation: ast.expr) -> bool:
    """Return whether an annotation is a ClassVar, which doesn't make a field."""
    if isinstance(annotation, ast.Constant):
        return "ClassVar" in str(annotation.value)
    return last_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation) == "ClassVar"
