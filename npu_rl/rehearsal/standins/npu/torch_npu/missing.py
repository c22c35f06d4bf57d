"""Names that this stand-in lacks, and the errors that they raise.

Upstream code asks in two ways whether torch_npu supports something, and both have to get the right answer:

- By attribute: `hasattr(torch_npu, "npu_moe_distribute_dispatch_v2")` (vllm_ascend/ops/fused_moe.py@v0.9.1rc2),
  `hasattr(torch_npu, "npu_cross_entropy_loss")` (verl/utils/torch_functional.py@55e3c5b), and MindSpeed's
  features_manager@7ff818c for fused permutation, swapped memory and compression. So an op without a CPU version is
  not an attribute: looking it up raises `NoCpuVersion` with its name. Those trees look an op up only in the expression
  that calls it, so a call fails there, and `hasattr` is False.
- By import: MindSpeed and vllm-ascend import graph-mode and profiler modules at the top of files that use them only
  in functions. Those modules, and no others, exist here as `PlaceholderModule`s: any name in them can be used as an
  annotation or a decorator, and raises when it is called.
"""

# ruff: noqa: ARG002  the signatures are Python's

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
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
"""Modules that files of MindSpeed 7ff818c and dc83a03 or vllm-ascend v0.9.1rc2 import at their top."""

KERNEL_FOLDERS = ("mindspeed.ops.triton", "mindspeed.core.transformer.flash_attention.flash_attention.triton")
"""MindSpeed's own Triton kernels, which core_r0.16.0 imports at its start
(features_manager/megatron_basic/requirements_basic.py:32). Not `triton` itself: torch would take a placeholder for it
(torch/_inductor/runtime/hints.py@2.13.0).
"""


LISTED = "`python -m torch_npu` lists what the stand-in for torch_npu has."


def refuse(op: str, **unsupported: object) -> None:
    """Raise UnsupportedArgument for the first argument that is neither None nor False."""
    for argument, value in unsupported.items():
        if value is not None and value is not False:
            raise UnsupportedArgument(f"torch_npu.{op}", argument, value)


def raise_missing(module: str, name: str) -> NoReturn:
    """Raise for a module's `__getattr__`: AttributeError for names with two underscores, else NoCpuVersion."""
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise NoCpuVersion(f"{module}.{name}", LISTED)


class Placeholder:
    """A name that can be passed on, and that raises when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise NoCpuVersion with the name."""
        raise NoCpuVersion(self._name, LISTED)

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Let `class X(placeholder)` at the top of a file define a class that nothing can use."""
        return (object,)

    def __or__(self, other: object) -> object:
        return Any  # `placeholder | None` in an annotation

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._name}: no CPU version (npu-rl's stand-in)>"


class PlaceholderModule(ModuleType):
    """A module whose names are all placeholders."""

    NPU_RL_STANDIN = True

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Placeholder(f"{self.__name__}.{name}")


_FUNCTIONS: dict[str, dict[str, Any]] = {
    # As on Atlas A3, for which cann-recipes-train's recipe is; MindSpeed's experts ask only whether it is a 910B
    # (core/transformer/moe/layers.py:127@v2.0.0_core_r0.8.0).
    "acl": {"get_soc_name": lambda: "Ascend910_9382"},
    # Without the graph engine, its converters are left as they are.
    "torchair": {"register_fx_node_ge_converter": lambda *_, **__: lambda converter: converter},
    # vllm_ascend/worker/worker_v1.py@v0.9.1rc2 calls it for every worker; there is no extension to register.
    "torch_npu.op_plugin.atb._atb_ops": {"_register_atb_extensions": lambda: None},
    # What torch_npu returns if no CANN is installed; MindSpeed calls it at import.
    "torch_npu.utils.collect_env": {"get_cann_version": lambda: "not known"},
    # Decorators of kernels, and whether this is an Ascend 950.
    "mindspeed.ops.triton.utils": {
        "is_arch35": lambda: False,
        **dict.fromkeys(("input_guard", "autocast_custom_fwd", "autocast_custom_bwd"), lambda kernel: kernel),
    },
}
"""Functions of placeholder modules that upstream files call, most of them while they are imported."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a placeholder module; None for others."""
        if name not in PLACEHOLDER_MODULES and not name.startswith(KERNEL_FOLDERS):
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="npu-rl's stand-in", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Create the placeholder module."""
        return PlaceholderModule(
            spec.name, "A placeholder of npu-rl's stand-in for torch_npu: nothing in it works."
        )

    def exec_module(self, module: ModuleType) -> None:
        """Add the functions that upstream files call."""
        vars(module).update(_FUNCTIONS.get(module.__name__, {}))


def install() -> None:
    """Make the placeholder modules importable where no real module exists."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # Before the tree's own kernels, which can't be imported without triton, and after the finder of hooks.
        sys.meta_path.insert(
            1 if importlib.util.find_spec("triton") is None else len(sys.meta_path), _Finder()
        )
