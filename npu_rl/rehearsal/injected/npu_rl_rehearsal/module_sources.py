"""The locations at which Python finds a tree's modules, without importing them, and other copies of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line on the interpreter, then one per module found elsewhere and per second copy of a package.

    What is below a package of the tree, or below a module that is elsewhere, has no line of its own.
    """
    code = os.path.realpath(job["code"])
    yield {"python": _interpreter(code)}
    for name in sorted({entry.stem for entry in Path(code).iterdir() if _has_modules(entry)}):
        yield from _sources(name, Path(code), list(sys.path), code)


def _interpreter(code: str) -> dict[str, Any]:
    import npu_rl_packages

    # Without the tree, whose metadata would count as installed packages, and without this folder's parent.
    path = [entry for entry in sys.path if entry and os.path.realpath(entry) != code]
    return npu_rl_packages.interpreter(path)


def _sources(module: str, folder: Path, path: Sequence[str], code: str) -> Iterator[dict[str, Any]]:
    """Yield the lines on a module of the tree, and on what is in it if it is a folder without `__init__.py`.

    Args:
        module: Its dotted name.
        folder: The tree's folder that has it.
        path: The folders in which Python looks for it.
    """
    here = folder / module.rpartition(".")[2]
    specs = list(_specs(module, path))
    places = [spec.origin for spec in specs if spec.origin is not None]
    if not places and here.is_dir():  # a namespace: each folder of that name has a part of it
        parts = dict.fromkeys(part for spec in specs for part in spec.submodule_search_locations or ())
        for name in sorted({entry.stem for entry in here.iterdir() if _has_modules(entry)}):
            yield from _sources(f"{module}.{name}", here, list(parts), code)
    elif not places or not _is_below(places[0], code):
        yield {"elsewhere": module, "place": places[0] if places else None}
    else:
        others = (
            place.removesuffix(f"{os.sep}__init__.py") for place in places if not _is_below(place, code)
        )
        yield from ({"copy": module, "place": place} for place in dict.fromkeys(others))


def _specs(module: str, path: Sequence[str]) -> Iterator[Any]:
    """Yield the specs of a module: of each finder, such as an editable installation's, and of each folder of a path."""
    for finder in sys.meta_path:
        # By its last part: a namespace package would look for its parent among the imported modules.
        name = module.rpartition(".")[2] if finder is PathFinder else module
        for entries in [[entry] for entry in path] if finder is PathFinder else [None]:
            try:
                spec = finder.find_spec(name, entries)
            except (ImportError, AttributeError, ValueError, OSError):
                continue
            if spec is not None:
                yield spec


def _has_modules(entry: Path) -> bool:
    """Return whether a file or folder of a tree is a module, or has some, that Python can import."""
    if not entry.stem.isidentifier():
        return False
    return entry.suffix == ".py" or (entry.is_dir() and next(entry.rglob("*.py"), None) is not None)


def _is_below(place: str, folder: str) -> bool:
    return os.path.realpath(place).startswith(f"{folder}{os.sep}")
