"""The tree's modules that a trainer's step executes, found through import statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source


def executed_modules(code: Path, entry: str) -> list[str]:
    """Return the trainer's module, the modules of its packages it imports, and their imports from other packages.

    Its packages are the module's own and those that the module itself imports, such as verl for a recipe of DAPO.
    Imports in functions count, since that is where a trainer chooses its workers. Other packages are not followed:
    importing a module imports what it needs.

    Args:
        code: The code folder.
        entry: Dotted name of the trainer's module.
    """
    packages = {name.partition(".")[0] for name in (entry, *_imports_of(code, entry))}
    found: set[str] = set()
    waiting = [entry]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        if module.partition(".")[0] in packages:
            waiting += [name for name in _imports_of(code, module) if name not in found]
    return sorted(found)


def _imports_of(code: Path, module: str) -> Iterator[str]:
    """Yield the tree's modules that a module's import statements name."""
    place = file_of(code, module)
    tree = syntax_tree(read_source(place) or b"") if place else None
    if tree is None or place is None:
        return
    package = module if place.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        for name in _named(node, package):
            if file_of(code, name):
                yield name


def _named(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a statement may import: both a and a.b for `from a import b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def file_of(code: Path, module: str) -> Path | None:
    """Return a module's file in the tree, or None."""
    place = code.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py") if module else ()
    return next((file for file in files if file.is_file()), None)
