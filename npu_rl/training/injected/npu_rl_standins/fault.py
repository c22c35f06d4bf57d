"""A negative control: lose a weight in the weight sync, to see that it is noticed.

NPU_RL_FAULT_ZEROED=o_proj zeroes every tensor with that in its name. With vLLM's engine the weight sync is verl's own
sharding manager, which passes `per_tensor_generator`'s tensors to vLLM's model (megatron_vllm.py:160 at 55e3c5b).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .hooks import after_import

FAULT = "NPU_RL_FAULT_ZEROED"


def install() -> None:
    """Inject the fault into the weight sync with vLLM, if NPU_RL_FAULT_ZEROED is set."""
    if os.environ.get(FAULT):
        after_import("verl.workers.sharding_manager.megatron_vllm", _install_in)


def _install_in(module: ModuleType) -> None:
    upstream = module.per_tensor_generator

    def per_tensor_generator(*arguments: Any, **named: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in upstream(*arguments, **named):
            yield name, inject_fault(name, tensor)

    module.per_tensor_generator = per_tensor_generator  # type: ignore[attr-defined]


def inject_fault(name: str, tensor: Any) -> Any:
    """Return the tensor, or zeros if NPU_RL_FAULT_ZEROED names it."""
    part = os.environ.get(FAULT)
    return tensor * 0 if part and part in name else tensor
