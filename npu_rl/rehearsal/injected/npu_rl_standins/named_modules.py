"""Modules that have every name and compute nothing, for imports that are impossible on a CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class NamedModule(ModuleType):
    """A module with every name: capitalized names are classes, others are modules."""

    __path__: list[str] = []  # noqa: RUF012  a package, so that its modules are asked for, too

    def __init__(self, name: str, version: str = "0.18.0", base: type = object) -> None:
        super().__init__(name)
        self.__version__, self._base = version, base

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            found: Any = type(name, (self._base,), {})
        else:
            found = NamedModule(name, self.__version__, self._base)
        setattr(self, name, found)
        return found

    def __call__(self, *_: Any, **__: Any) -> None:
        """Decorate or compute nothing."""


class NamedModules(MetaPathFinder, Loader):
    """Finds the modules of `roots`, packages or single modules, as NamedModules.

    Args:
        own: Those of them that the code folder has, and that are imported from there without the packages above them.
        version: Their `__version__`.
        base: The base of their classes.
    """

    def __init__(
        self, *roots: str, own: Collection[str] = (), version: str = "0.18.0", base: type = object
    ) -> None:
        self._roots, self._own, self._version, self._base = roots, own, version, base

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return the spec of a module of the roots; None for others."""
        file = Path(*name.split(".")).with_suffix(".py")
        if name in self._own and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        named = name in self._roots or name.partition(".")[0] in self._roots
        return ModuleSpec(name, self) if named else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return NamedModule(spec.name, self._version, self._base)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""
