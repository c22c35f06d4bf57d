"""Names that Megatron-core's local layers import from triton and TransformerEngine, which have no CPU build.

Core 0.14.0rc0 decorates functions with triton.jit where triton is None (fused_indices_converter.py:21 at 6a6cd47), and
asks whether te_general_gemm is None where its import has failed (moe/moe_utils.py:877).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_FUSIONS = "megatron.core.fusions"
_FUNCTIONS = {
    "fused_indices_converter": "fused_indices_to_multihot",
    "fused_pad_routing_map": "fused_pad_routing_map",
}


def install(code: Path) -> list[str]:
    """Make triton's kernels importable where triton is missing; return the replaced names.

    Args:
        code: The code tree.
    """
    if importlib.util.find_spec("triton") is not None:
        return []
    stood_in = []
    for name, function in _FUNCTIONS.items():
        if not (code / _FUSIONS.replace(".", "/") / f"{name}.py").is_file():
            continue
        module = ModuleType(f"{_FUSIONS}.{name}")
        setattr(module, function, _raising(function))
        sys.modules[module.__name__] = module
        stood_in.append(f"triton's kernel {function}: a name that raises when it is called")
    return stood_in


def without_te_gemm() -> None:
    """Mark TransformerEngine as missing in Megatron-core's expert modules, which then use torch."""
    utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None


def _raising(name: str) -> Any:
    def call(*_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError(f"{name} is a triton kernel, which has no CPU build")

    return call
