"""The classes of a code tree, read from the source text without importing anything."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.trainer_code.source_files import is_source, source_files

_DEPTH = 12


@dataclass(frozen=True)
class Module:
    """One parsed file. names: what its top level defines or imports."""

    dotted: str
    file: str
    package: bool
    names: Mapping[str, ast.stmt]
    stars: tuple[str, ...]


@dataclass(frozen=True)
class Field:
    """A field of a dataclass, or an argument of a function."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None
    module: Module
    line: int

    @property
    def where(self) -> str:
        return f"{self.module.file}:{self.line}"


def parse(content: bytes) -> ast.Module | None:
    """A Python file's syntax tree; None if it is none. What Python warns of in it is upstream's matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


class Sources:
    """A code folder's modules: each file is read and parsed once, when it is first asked for."""

    def __init__(self, code: Path) -> None:
        self.code = code
        self._modules: dict[str, Module | None] = {}
        self._texts: dict[str, dict[str, bytes]] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def texts(self, folder: str) -> Mapping[str, bytes]:
        """Every Python file below a folder of the code, by its name relative to the code."""
        if folder not in self._texts:
            paths = source_files((self.code / folder).rglob("*.py"))
            self._texts[folder] = {
                path.relative_to(self.code).as_posix(): path.read_bytes() for path in paths
            }
        return self._texts[folder]

    def tree(self, file: str) -> ast.Module | None:
        """The syntax tree of a file named relative to the code; None if it is no Python file."""
        if file not in self._trees:
            known = next((texts[file] for texts in self._texts.values() if file in texts), None)
            path = self.code / file
            content = known if known is not None else path.read_bytes() if is_source(path) else None
            self._trees[file] = parse(content) if content is not None else None
        return self._trees[file]

    def module(self, dotted: str) -> Module | None:
        """The module, or None if the folder has no such (readable) file."""
        if dotted not in self._modules:
            self._modules[dotted] = self._parse(dotted)
        return self._modules[dotted]

    def find(self, dotted: str) -> tuple[Module, ast.stmt] | None:
        """What `package.module.Name` is: its class, function or assignment, imports followed."""
        holder, _, name = dotted.rpartition(".")
        module = self.module(holder) if holder else None
        return self.named(module, name) if module else None

    def named(self, module: Module, name: str, depth: int = 0) -> tuple[Module, ast.stmt] | None:
        """What a name at the top level of a module stands for."""
        statement = module.names.get(name)
        if depth > _DEPTH:
            return None
        if isinstance(statement, ast.ImportFrom):
            origin = _absolute(module, statement)
            real = next(item.name for item in statement.names if (item.asname or item.name) == name)
            source = self.module(origin)
            return self.named(source, real, depth + 1) if source else None
        if statement is not None:
            return module, statement
        for star in module.stars:
            source = self.module(star)
            found = self.named(source, name, depth + 1) if source else None
            if found:
                return found
        return None

    def fields(self, dotted: str) -> dict[str, Field] | None:
        """The fields of a dataclass, those of its bases in the tree first. None if it isn't a class here."""
        found = self.find(dotted)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return None
        return self.fields_of(found[0], found[1])

    def fields_of(self, module: Module, node: ast.ClassDef, depth: int = 0) -> dict[str, Field]:
        """The fields of a class found before."""
        result: dict[str, Field] = {}
        for base in reversed(node.bases):
            found = self.expression(module, base) if depth < _DEPTH else None
            if found and isinstance(found[1], ast.ClassDef):
                result.update(self.fields_of(found[0], found[1], depth + 1))
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                name, annotation = item.target.id, item.annotation
                if not _is_of_the_class(annotation):
                    result[name] = Field(name, annotation, item.value, module, item.lineno)
        return result

    def arguments(self, dotted: str, method: str) -> dict[str, Field]:
        """The named arguments of a class's method; {} if it isn't there."""
        found = self.find(dotted)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return {}
        for item in found[1].body:
            if isinstance(item, ast.FunctionDef) and item.name == method:
                given = [*item.args.posonlyargs, *item.args.args][1:] + item.args.kwonlyargs
                return {a.arg: Field(a.arg, a.annotation, None, found[0], a.lineno) for a in given}
        return {}

    def expression(self, module: Module, node: ast.expr) -> tuple[Module, ast.stmt] | None:
        """What `Name` or `module.Name` in a module's text stands for."""
        if isinstance(node, ast.Name):
            return self.named(module, node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            statement = module.names.get(node.value.id)
            if isinstance(statement, ast.ImportFrom):
                real = next(i.name for i in statement.names if (i.asname or i.name) == node.value.id)
                return self.find(f"{_absolute(module, statement)}.{real}.{node.attr}")
            if isinstance(statement, ast.Import):
                real = next(i.name for i in statement.names if (i.asname or i.name) == node.value.id)
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


def module_name(file: str) -> str:
    """The dotted name of a file named relative to the code."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_names(node: ast.AST) -> dict[str, ast.stmt]:
    """The names that imports inside a function give."""
    return {
        item.asname or item.name: statement
        for statement in ast.walk(node)
        if isinstance(statement, (ast.Import, ast.ImportFrom))
        for item in statement.names
    }


def _top_level(tree: ast.Module, module: Module) -> tuple[dict[str, ast.stmt], tuple[str, ...]]:
    names: dict[str, ast.stmt] = {}
    stars: list[str] = []
    for statement in _statements(tree.body):
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            stars.append(_absolute(module, statement))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for item in statement.names:
                names[item.asname or item.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    names[target.id] = statement
    return names, tuple(stars)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under `if` and `try` too (TYPE_CHECKING, optional imports)."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [item for handler in statement.handlers for item in handler.body]
            yield from _statements([*handlers, *statement.orelse, *statement.body])


def _absolute(module: Module, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.dotted.split(".")
    parts = parts[: len(parts) - statement.level + module.package]
    return ".".join([*parts, statement.module] if statement.module else parts)


def _is_of_the_class(annotation: ast.expr) -> bool:
    """Whether it is a ClassVar, which is no field."""
    if isinstance(annotation, ast.Constant):
        return "ClassVar" in str(annotation.value)
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return getattr(outer, "attr", getattr(outer, "id", "")) == "ClassVar"
