"""Importing this module makes code written for torch.cuda run on torch.npu, here the CPU.

Like torch_npu's module, it maps torch.cuda to torch.npu, device names and tensor types. `torch.cuda.is_available()` is
unchanged and `Tensor.is_cuda` stays False, while torch_npu on an NPU makes both true. Code that asks for them takes
its CPU path here, which a rehearsal reports as not seen on an NPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from npu_rl_standins.used import count

import torch_npu
from torch_npu import device

_NOT_TRANSFERRED = {"NPU_RL_STANDIN", "config", "is_available", "random"}
_FLOATS = ("torch.BFloat16Tensor", "torch.FloatTensor", "torch.HalfTensor")


def _transfer() -> None:
    for name, value in vars(torch_npu.npu).items():
        if not name.startswith("__") and name not in _NOT_TRANSFERRED:
            setattr(torch.cuda, name, _separate_function(value))
    for name in ("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"):
        setattr(torch.cuda.random, name, getattr(torch.cuda, name))
    device.map_cuda_too()
    torch.Tensor.type = _with_cuda_names(torch.Tensor.type)


def _separate_function(value: Any) -> Any:
    """Return a function with the same effect: torch's compiler refuses one function under the names of two modules."""
    if isinstance(value, type) or not callable(value) or isinstance(value, torch.Generator):
        return value

    @functools.wraps(value)
    def call(*arguments: Any, **named: Any) -> Any:
        return value(*arguments, **named)

    return call


def _with_cuda_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return Tensor.type with CUDA's names of types.

    Megatron-core's distributed optimizer looks for 'torch.cuda.FloatTensor' (distrib_optimizer.py@v0.12.1).
    """

    @functools.wraps(original)
    def type_(tensor: Any, dtype: Any = None, *arguments: Any, **named: Any) -> Any:
        if dtype is None:
            name = original(tensor)
            return name.replace("torch.", "torch.cuda.") if name in _FLOATS else name
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.").replace("torch.npu.", "torch.")
        return original(tensor, dtype, *arguments, **named)

    return type_


_transfer()
count("torch_npu.contrib.transfer_to_npu")
