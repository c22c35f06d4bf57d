"""verl's Megatron workers import torch without the recipe's prelude, which replaces what an NPU host lacks.

Run is verl/workers/megatron_workers.py@54c9b73 as a whole. All that is not of the standard library is stood in for by
modules that have every name, each a class that may be inherited from and called. "imported" are the first of them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import runpy
import sys
import types
from typing import Any

from witness_common import show

FILE = "verl/workers/megatron_workers.py"
PRELUDE = ["verl_patches", "verl_patches.prelude_patch"]


class AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyClass(name, (), {})

    def __call__(cls, *_: object, **__: object) -> Any:
        return lambda decorated: decorated


class Recorder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        self.asked.append(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        if (
            module.__name__ not in PRELUDE
        ):  # a package without names: `from verl_patches import x` is a module
            module.__dict__["__getattr__"] = lambda name: getattr(AnyClass("any", (), {}), name)


def main() -> dict[str, Any]:
    sys.meta_path.insert(0, recorder := Recorder())
    names = runpy.run_path(FILE)
    assert isinstance(names["ActorRolloutRefWorker"], type)
    return {"fault": recorder.asked[:2] != PRELUDE, "imported": recorder.asked[:3]}


if __name__ == "__main__":
    show(main)
