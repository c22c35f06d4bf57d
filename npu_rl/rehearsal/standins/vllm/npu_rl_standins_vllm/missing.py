"""Ops of vLLM's compiled code without a stand-in; looking one up raises with its name."""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.unsupported import NoCpuVersion

NAMESPACES = (
    "_C",
    "_C_cache_ops",
    "_C_cpu",
    "_C_cuda_utils",
    "_C_custom_ar",
    "_C_utils",
    "_moe_C",
    "_rocm_C",
)
"""The namespaces of torch.ops that vllm/_custom_ops.py@0.9.1 and the CPU worker use."""


COMPILED = "It is compiled code of vLLM or of a package under it."


def install() -> None:
    """Make every unknown name in NAMESPACES raise NoCpuVersion; a second call has no effect."""
    for name in NAMESPACES:
        namespace = getattr(torch.ops, name)
        if not hasattr(type(namespace), "npu_rl_standin"):
            namespace.__class__ = _raising_namespace(type(namespace))


def _raising_namespace(original: type) -> type:
    class Namespace(original):  # type: ignore[misc,valid-type]
        npu_rl_standin = True

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("__"):  # Python itself looks for these
                    raise
                raise NoCpuVersion(f"torch.ops.{self.name}.{name}", COMPILED) from None

    return Namespace
