"""Run a module file and print what it imports, in order: python record_imports.py FILE

Everything that is not of the standard library is stood in for. A stand-in has every name, each a class that
may be inherited from and, when called, gives a decorator that changes nothing: what a module needs while
it is imported, and no more. Prints JSON: the modules asked for, and the classes the file defines.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from typing import Any

PRELUDE = "verl_patches"  # a package without names of its own: `from verl_patches import x` imports a module


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Meta(name, (), {})

    def __call__(cls, *args: object, **options: object) -> Any:
        return lambda decorated: decorated


class _Recorder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        self.asked.append(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        if not module.__name__.startswith(PRELUDE):
            module.__dict__["__getattr__"] = lambda name: getattr(_Meta("any", (), {}), name)


def main(path: str) -> dict[str, list[str]]:
    recorder = _Recorder()
    sys.meta_path.insert(0, recorder)
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec")
    names: dict[str, Any] = {"__name__": "verl.workers.megatron_workers", "__file__": path}
    exec(code, names)
    own = [n for n, v in names.items() if isinstance(v, type) and v.__module__ == names["__name__"]]
    return {"asked": recorder.asked, "classes": own}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
