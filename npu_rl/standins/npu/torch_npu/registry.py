"""The ops that have a CPU version, by name, each counted when it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from npu_rl_standins.used import count

OPS: dict[str, Callable[..., Any]] = {}
"""What becomes an attribute of torch_npu."""


def op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a CPU version of torch_npu's op of the same name; its docstring gives shapes, source and limits."""
    name = f"torch_npu.{function.__name__}"

    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        count(name)
        return function(*arguments, **named)

    OPS[function.__name__] = counted
    return counted


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the precision that NPU kernels compute in: float32 (float64 is left, for gradient checks)."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
