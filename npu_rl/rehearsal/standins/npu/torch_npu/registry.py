"""The ops that have a CPU version, by name; each call is counted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from npu_rl_standins.used import count

OPS: dict[str, Callable[..., Any]] = {}
"""The attributes of torch_npu that are ops."""


def op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a CPU version of torch_npu's op of the same name."""
    name = f"torch_npu.{function.__name__}"

    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        count(name)
        return function(*arguments, **named)

    OPS[function.__name__] = counted
    return counted


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the precision of NPU kernels: float32 (float64 is kept, for gradient checks)."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
