"""What vLLM's compiled part has and the stand-ins haven't: a look-up says so, with the operator's name."""

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
"""The namespaces of torch.ops that vllm/_custom_ops.py@0.9.1 and the CPU worker take operators from."""


COMPILED = "It is compiled code of vLLM or of a package under it."


def install() -> None:
    """Let every unknown name in NAMESPACES raise NoCpuVersion. Doing it again changes nothing."""
    for name in NAMESPACES:
        namespace = getattr(torch.ops, name)
        if not hasattr(type(namespace), "npu_rl_standin"):
            namespace.__class__ = _saying(type(namespace))


def _saying(original: type) -> type:
    class Namespace(original):  # type: ignore[misc,valid-type]
        npu_rl_standin = True

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("__"):  # Python's own questions
                    raise
                raise NoCpuVersion(f"torch.ops.{self.name}.{name}", COMPILED) from None

    return Namespace
