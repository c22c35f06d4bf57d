"""The locations at which Python finds the tree's modules, without importing them, and other copies of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_SEARCHED = (BuiltinImporter, FrozenImporter, PathFinder)  # other finders come from editable installations


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line on the interpreter, then one per module found elsewhere and per second copy of a package.

    A module below one that is elsewhere has no line of its own.
    """
    code = os.path.realpath(job["code"])
    yield {"python": _interpreter(code)}
    search = _Search()
    strangers: set[str] = set()
    for module in sorted(job["modules"]):
        if any(module.startswith(f"{other}.") for other in strangers):
            continue
        spec = search.find(module)
        if spec is None or not _is_below(spec.origin, code):
            strangers.add(module)
            yield {"elsewhere": module, "place": spec.origin if spec else None}
    tops = sorted({module.partition(".")[0] for module in job["modules"]} - strangers)
    for top in tops:
        own = [module for module in job["modules"] if module == top or module.startswith(f"{top}.")]
        for place in dict.fromkeys(_other_places(top, code)):
            if copied := _copied(Path(place), own):
                yield {"copy": top, "place": place, "modules": copied}


def _interpreter(code: str) -> dict[str, Any]:
    import npu_rl_packages

    # Without the tree, whose metadata would count as installed packages, and without this folder's parent.
    path = [entry for entry in sys.path if entry and os.path.realpath(entry) != code]
    return npu_rl_packages.interpreter(path)


class _Search:
    """A cache of module specs, found from the top-level package down, like in an import."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find(self, module: str) -> ModuleSpec | None:
        if module not in self._specs:
            self._specs[module] = self._found(module)
        return self._specs[module]

    def _found(self, module: str) -> ModuleSpec | None:
        package = module.rpartition(".")[0]
        if not package:
            return _found_by(sys.meta_path, module, None)
        parent = self.find(package)
        if parent is None or parent.submodule_search_locations is None:
            return None
        return _found_by(sys.meta_path, module, list(parent.submodule_search_locations))


def _found_by(finders: Sequence[Any], module: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in finders:
        # By its last part: a namespace package would look for its parent among the imported modules.
        name = module.rpartition(".")[2] if finder is PathFinder else module
        try:
            spec = finder.find_spec(name, path)
        except (ImportError, AttributeError, ValueError, OSError):
            continue
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def _is_below(place: str | None, folder: str) -> bool:
    return place is not None and os.path.realpath(place).startswith(f"{folder}{os.sep}")


def _other_places(top: str, code: str) -> Iterator[str]:
    """Yield each folder or file outside the tree that would provide a top-level name without the tree."""
    specs = [PathFinder.find_spec(top, [entry]) for entry in sys.path if os.path.realpath(entry) != code]
    others = [finder for finder in sys.meta_path if finder not in _SEARCHED]
    specs += [_found_by([finder], top, None) for finder in others]
    for spec in specs:
        if spec is None:
            continue
        places = list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
        yield from (place for place in places if not _is_below(place, code))


def _copied(place: Path, modules: list[str]) -> int:
    """Return how many of a package's modules also exist in another place."""
    if not place.is_dir():
        return 1
    paths = [place.joinpath(*module.split(".")[1:]) for module in modules]
    return sum(
        path.with_name(f"{path.name}.py").is_file() or (path / "__init__.py").is_file() for path in paths
    )
