"""Run a function right after a module has been imported, also one whose import has already begun.

That last case is MindSpeed's: its builder imports torch_npu, so the hook may come while the builder's own file
is running. Then it is run at the next import that anyone makes after the file has ended.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Change = Callable[[ModuleType], None]

_waiting: dict[str, list[Change]] = {}


def after_import(name: str, change: Change) -> None:
    """Call `change(module)` once `name` has been imported; at once if it has been already."""
    _waiting.setdefault(name, []).append(change)
    _serve()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _serve() -> None:
    """Change what is waited for and has been imported."""
    for name in list(_waiting):
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _change(module, name)


def _change(module: ModuleType, name: str) -> None:
    for change in _waiting.pop(name, []):
        change(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: it asks the others and wraps the loader of what is waited for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        _serve()
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, name)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """The module's own loader, and the changes after it."""

    def __init__(self, loader: importlib.abc.Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _change(module, self._name)

    def __getattr__(self, name: str) -> object:
        # get_source, get_data, is_package: inspect and importlib.resources ask the loader for these.
        return getattr(self._loader, name)
