"""Hooks that run a function right after a module's import, even if the import has already begun.

The latter is MindSpeed's case: its builder imports torch_npu, so the hook may be registered while the builder's own
file is running. The function is then run at the first import after the file has ended.
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
    """Call `change(module)` once `name` is imported; immediately if it already is."""
    _waiting.setdefault(name, []).append(change)
    _run_due_changes()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _run_due_changes() -> None:
    """Run the changes of modules that have been imported."""
    for name in list(_waiting):
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _run_changes(module, name)


def _run_changes(module: ModuleType, name: str) -> None:
    for change in _waiting.pop(name, []):
        change(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finder that queries the other finders, and wraps the loader of modules with changes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec, with a wrapped loader, of a module with changes; None for other modules."""
        _run_due_changes()
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
    """The module's own loader, followed by the changes."""

    def __init__(self, loader: importlib.abc.Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then run its changes."""
        self._loader.exec_module(module)
        _run_changes(module, self._name)

    def __getattr__(self, name: str) -> object:
        # inspect and importlib.resources use the loader's get_source, get_data and is_package.
        return getattr(self._loader, name)
