"""Negative controls: faults in the weight sync that a rehearsal must detect.

NPU_RL_SYNC_FAULT=KIND:PART changes every tensor with PART in its name on its way to the rollout. KIND is zeroed;
unsent; rounded, to bfloat16 or, if it is that already, to FP8; kept, as it was at the first sync; or exchanged, its
upper and its lower half, and of experts each with the one half of them further, as if two ranks had each other's. With
vLLM's engine the weight sync is verl's own sharding manager, which passes `per_tensor_generator`'s tensors to vLLM's
model (megatron_vllm.py:160 at 55e3c5b).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from .hooks import after_import

MANAGERS = (
    "verl.workers.sharding_manager.megatron_vllm",
    "verl_patches.workers.sharding_manager.megatron_vllm",
)
"""Modules with a sharding manager between Megatron and vLLM, of verl and of cann-recipes-train."""

FAULT = "NPU_RL_SYNC_FAULT"
KINDS = ("zeroed", "unsent", "rounded", "kept", "exchanged")
EXPERT_NUMBER = re.compile(r"(?<=\.experts\.)[0-9]+(?=\.)")

_first: dict[str, Any] = {}


def install() -> None:
    """Inject the fault into the weight sync with vLLM, if the variable is set."""
    if os.environ.get(FAULT):
        for module in MANAGERS:
            after_import(module, _install_in)


def _install_in(module: ModuleType) -> None:
    upstream = module.per_tensor_generator

    def per_tensor_generator(*arguments: Any, **named: Any) -> Iterator[tuple[str, Any]]:
        yield from with_fault(upstream(*arguments, **named))

    module.per_tensor_generator = per_tensor_generator  # type: ignore[attr-defined]


def with_fault(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, with those in NPU_RL_SYNC_FAULT changed. Raises ValueError for an unknown kind."""
    kind, _, part = os.environ.get(FAULT, "").partition(":")
    if not kind:
        yield from weights
        return
    if kind not in KINDS:
        raise ValueError(f"{FAULT} has {kind!r}; known are {', '.join(KINDS)}")
    every = list(weights)
    half = (
        max((int(found[0]) for name, _ in every if (found := EXPERT_NUMBER.search(name))), default=0) + 1
    ) // 2
    for name, tensor in every:
        if part not in name:
            yield name, tensor
        elif kind == "exchanged" and EXPERT_NUMBER.search(name):
            yield EXPERT_NUMBER.sub(lambda found: str((int(found[0]) + half) % (2 * half)), name), tensor
        elif kind != "unsent":
            yield name, _changed(kind, name, tensor)


def _changed(kind: str, name: str, tensor: Any) -> Any:
    import torch

    if kind == "zeroed":
        return tensor * 0
    if kind == "exchanged":
        return torch.cat(tensor.chunk(2)[::-1])
    if kind == "kept":
        return _first.setdefault(name, tensor.clone())
    coarser = torch.float8_e4m3fn if tensor.dtype == torch.bfloat16 else torch.bfloat16
    return tensor.to(coarser).to(tensor.dtype)
