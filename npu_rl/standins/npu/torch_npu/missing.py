"""What this stand-in doesn't have, and how it says so.

Upstream code asks in two ways whether torch_npu can do something, and both must hear the truth:

- By attribute: `hasattr(torch_npu, "npu_moe_distribute_dispatch_v2")` (vllm_ascend/ops/fused_moe.py@v0.9.1rc2),
  `hasattr(torch_npu, "npu_cross_entropy_loss")` (verl/utils/torch_functional.py@55e3c5b), and MindSpeed's
  features_manager@7ff818c for fused permutation, swapped memory and compression. So an op without a CPU version is
  no attribute: the look-up itself raises `NoCpuVersion`, with the op's name. Nothing in those trees takes an op
  without calling it in the same expression, so a call of it fails just there, and a probe hears "no".
- By import: MindSpeed and vllm-ascend import graph-mode and profiler modules at the top of files that use them only
  in functions. Those modules, and no others, exist here as `Placeholders`: any name in them can be taken, as an
  annotation or a decorator, and raises when it is called.
"""

# ruff: noqa: ARG002  the signatures are Python's

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from npu_rl_standins.unsupported import NoCpuVersion, UnsupportedArgument

PLACEHOLDER_MODULES = (
    "acl",
    "acl.rt",
    "torch_npu.op_plugin",
    "torch_npu.op_plugin.atb",
    "torch_npu.op_plugin.atb._atb_ops",
    "torch_npu.profiler",
    "torch_npu.profiler.profiler",
    "torch_npu.utils",
    "torch_npu.utils.collect_env",
    "torch_npu.utils.flops_count",
    "torchair",
    "torchair._contrib",
    "torchair._contrib.custom_torch_ops",
    "torchair.configs",
    "torchair.configs.compiler_config",
    "torchair.ge",
    "torchair.ge.attr",
    "torchair.ops",
    "torchair.scope",
)
"""Imported at the top of files of MindSpeed 7ff818c and dc83a03 or vllm-ascend v0.9.1rc2; see the module's text."""


LISTED = "`python -m torch_npu` lists what the stand-in for torch_npu has."


def refuse(op: str, **unsupported: object) -> None:
    """Raise UnsupportedArgument for the first argument that isn't None or False: its neutral value."""
    for argument, value in unsupported.items():
        if value is not None and value is not False:
            raise UnsupportedArgument(f"torch_npu.{op}", argument, value)


def raise_missing(module: str, name: str) -> NoReturn:
    """For `__getattr__` of a module: names with two underscores are Python's own questions, all others are ours."""
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise NoCpuVersion(f"{module}.{name}", LISTED)


class Placeholder:
    """A name that can be taken and passed on, and says what it is when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NoCpuVersion(self._name, LISTED)

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (object,)  # `class X(placeholder)` at the top of a file defines a class that nothing can use

    def __or__(self, other: object) -> object:
        return Any  # `placeholder | None` in an annotation

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._name}: no CPU version (npu-rl's stand-in)>"


class PlaceholderModule(ModuleType):
    """A module all of whose names are placeholders."""

    NPU_RL_STANDIN = True

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Placeholder(f"{self.__name__}.{name}")


_TRUE_HERE: dict[str, dict[str, Any]] = {
    # A converter for a graph engine that isn't there is left as it is.
    "torchair": {"register_fx_node_ge_converter": lambda *_, **__: lambda converter: converter},
    # vllm_ascend/worker/worker_v1.py@v0.9.1rc2 calls it for every worker; there is no extension to register.
    "torch_npu.op_plugin.atb._atb_ops": {"_register_atb_extensions": lambda: None},
    # What torch_npu answers where no CANN is installed; MindSpeed asks at import.
    "torch_npu.utils.collect_env": {"get_cann_version": lambda: "not known"},
}
"""Functions of placeholder modules that upstream files call while they are imported."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PLACEHOLDER_MODULES:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="npu-rl's stand-in", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return PlaceholderModule(
            spec.name, "A placeholder of npu-rl's stand-in for torch_npu: nothing in it works."
        )

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_TRUE_HERE.get(module.__name__, {}))


def install() -> None:
    """Make the placeholder modules importable, behind every module that really exists."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
