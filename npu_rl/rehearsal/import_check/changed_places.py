"""The functions and classes of a tree that patches change, by their qualified Python names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.workspace.folder.receipt import Receipt

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class ChangedPlace:
    """A function, class or module that a patch changes.

    Attributes:
        file: Its path in the tree.
        name: The name in the module, such as Class.method; "" for the module itself.
        function: Whether it is a function.
        first, last: Its lines, decorators included.
        decorated: Whether it has any.
        patches: The patches that change it, as COMPONENT: NAME.
    """

    module: str
    file: str
    name: str
    function: bool
    first: int
    last: int
    decorated: bool = False
    patches: tuple[str, ...] = ()

    @property
    def dotted(self) -> str:
        """The full dotted name."""
        return f"{self.module}.{self.name}" if self.name else self.module


def changed_places(code: Path, receipt: Receipt) -> list[ChangedPlace]:
    """Return the places that hunks change in modules of the tree's packages, sorted by name.

    Hunks that a later patch supersedes count through that patch. Scripts outside of packages are not imported by
    anything, and are left out.
    """
    patches: dict[tuple[str, str], dict[str, None]] = {}
    found: dict[tuple[str, str], ChangedPlace] = {}
    trees: dict[str, ast.Module | None] = {}
    for record in receipt.hunks:
        file = str(record["file"])
        module = _module_of(code, file) if record["root"] == "code" else None
        if module is None or record["state"] != "in place":
            continue
        if file not in trees:
            trees[file] = syntax_tree(read_source(code / file) or b"")
        for line in _changed_lines(record):
            chain = _chain(trees[file], line)
            place = _place(module, file, chain)
            found[module, place.name] = place
            names = patches.setdefault((module, place.name), {})
            names[f"{record['component']}: {record['patch']}"] = None
    every = (replace(place, patches=tuple(patches[key])) for key, place in found.items())
    return sorted(every, key=lambda place: (place.module, place.name))


def _module_of(code: Path, file: str) -> str | None:
    path = Path(file)
    if path.suffix != ".py" or not (code / path.parent / "__init__.py").is_file() or len(path.parts) < 2:
        return None
    parts = [*path.parts[:-1], *([] if path.stem == "__init__" else [path.stem])]
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None


def _changed_lines(record: Mapping[str, Any]) -> Iterator[int]:
    """Yield the lines in the patched file that a hunk adds, or at which it removes lines."""
    line = int(record["line"])
    for tag, _ in record["lines"]:
        if tag != " ":
            yield line
        line += tag != "-"


def _chain(tree: ast.Module | None, line: int) -> list[_Definition]:
    """Return the definitions around a line, outer ones first. Definitions in a function count as the function."""
    chain: list[_Definition] = []
    body: Sequence[ast.stmt] = tree.body if tree is not None else ()
    while found := next((node for node in _definitions(body) if _first(node) <= line <= _last(node)), None):
        chain.append(found)
        body = found.body if isinstance(found, ast.ClassDef) else ()
    return chain


def _definitions(body: Sequence[ast.stmt]) -> Iterator[_Definition]:
    """Yield the definitions of a body, including those inside `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, _Definition):
            yield node
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, name, [])
            yield from _definitions(inner)


def _first(node: _Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _last(node: _Definition) -> int:
    return node.end_lineno or node.lineno


def _place(module: str, file: str, chain: Sequence[_Definition]) -> ChangedPlace:
    if not chain:
        return ChangedPlace(module, file, "", False, 1, 1)
    name, inner = ".".join(node.name for node in chain), chain[-1]
    is_function = not isinstance(inner, ast.ClassDef)
    decorated = bool(inner.decorator_list)
    return ChangedPlace(module, file, name, is_function, _first(inner), _last(inner), decorated)
