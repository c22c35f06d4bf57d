"""Tensors that are asked for on an NPU are made on the CPU.

torch_npu makes "npu" the name of a device; here the name is legal too, and every factory function, `Tensor.to`,
`Module.to` and `with torch.device(...)` read it as the CPU. After `transfer_to_npu` so are "cuda" and plain
indices. A tensor always says that it lies on the CPU, and `Tensor.is_npu` is False.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.utils import _device

CPU = torch.device("cpu")

_FACTORIES = """
    arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye full
    full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand rand_like
    randint randint_like randn randn_like randperm scalar_tensor sparse_coo_tensor sparse_csr_tensor tensor
    tril_indices triu_indices zeros zeros_like
"""
_TENSOR_METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros"

_read_as_cpu = {"npu", "privateuseone"}
_indices_too = False


def to_cpu(device: Any) -> Any:
    """The CPU for a device that is stood in for, else what was given."""
    if isinstance(device, str):
        # verl joins a device's name and its index, which is "cpu" too (verl/utils/megatron_utils.py:127 at 55e3c5b)
        return "cpu" if device.partition(":")[0] in _read_as_cpu or device == "cpu:cpu" else device
    if isinstance(device, torch.device):
        return CPU if device.type in _read_as_cpu else device
    if _indices_too and isinstance(device, int) and not isinstance(device, bool):
        return CPU
    return device


def install() -> None:
    """Read "npu" as the CPU from now on."""
    torch.utils.rename_privateuse1_backend("npu")  # makes torch.device("npu") legal
    torch.accelerator.current_accelerator = _no_accelerator  # which the name alone would be taken for
    torch._C._get_accelerator = _no_accelerator_is_the_cpu  # asked by torch.distributed.barrier
    _device._device_constructors()  # remembers the functions that `with torch.device` acts on, before they are wrapped
    for name in _FACTORIES.split():
        setattr(torch, name, _wrapped(getattr(torch, name)))
    for name in _TENSOR_METHODS.split():
        setattr(torch.Tensor, name, _wrapped(getattr(torch.Tensor, name)))
    for holder in (torch.Tensor, torch.nn.Module):
        holder.to = _first_too(holder.to)
        holder.npu = _stay
    torch.nn.Module.to_empty = _wrapped(torch.nn.Module.to_empty)
    torch.Tensor.is_npu = property(lambda _: False)  # dynamo asks it for its getter
    torch.Tensor.pin_memory = _copied
    torch.load = _map_location_too(torch.load)
    _device.DeviceContext.__init__ = _first_too(_device.DeviceContext.__init__)


def read_cuda_too() -> None:
    """What transfer_to_npu adds: "cuda" and plain device indices mean the CPU as well."""
    global _indices_too
    _indices_too = True
    _read_as_cpu.add("cuda")
    torch.Tensor.cuda = torch.nn.Module.cuda = _stay


def _no_accelerator_is_the_cpu(*_: Any) -> torch.device:
    return torch.device("cpu")


def _no_accelerator(*_: Any, **__: Any) -> None:
    """There is none, as before."""


def _stay(tensor_or_module: Any, *_: Any, **__: Any) -> Any:
    return tensor_or_module


def _copied(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Pinned memory is memory of its own: verl frees the original after it has offloaded into it."""
    return tensor.detach().clone()


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_cpu(*arguments: Any, **named: Any) -> Any:
        if "device" in named:
            named["device"] = to_cpu(named["device"])
        named.pop("pin_memory", None)  # torch without an accelerator refuses to pin
        return original(*arguments, **named)

    builtin = _find_builtin(original)
    if builtin:
        _register_builtin(on_cpu, builtin)  # else torch.jit.script finds a function it can't compile
    return on_cpu


def _first_too(original: Callable[..., Any]) -> Callable[..., Any]:
    """As `_wrapped`, for methods whose first argument may be a device."""

    @functools.wraps(original)
    def on_cpu(holder: Any, *arguments: Any, **named: Any) -> Any:
        if arguments:
            arguments = (to_cpu(arguments[0]), *arguments[1:])
        if "device" in named:
            named["device"] = to_cpu(named["device"])
        return original(holder, *arguments, **named)

    return on_cpu


def _map_location_too(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*arguments: Any, **named: Any) -> Any:
        if "map_location" in named:
            named["map_location"] = to_cpu(named["map_location"])
        elif len(arguments) > 1:
            arguments = (arguments[0], to_cpu(arguments[1]), *arguments[2:])
        return original(*arguments, **named)

    return load
