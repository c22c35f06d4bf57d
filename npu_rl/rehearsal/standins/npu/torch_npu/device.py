"""Create tensors for an NPU on the CPU.

torch_npu makes "npu" the name of a device. Here the name is valid too, and every factory function, `Tensor.to`,
`Module.to` and `with torch.device(...)` take it for the CPU. After `transfer_to_npu` that holds for "cuda" and device
indices, too. A tensor is always on the CPU, and `Tensor.is_npu` is False.
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

_mapped_types = {"npu", "privateuseone"}
_maps_indices = False


def to_cpu(device: Any) -> Any:
    """Return the CPU in place of an NPU, else the given device."""
    if isinstance(device, str):
        # verl joins a device's name and its index, which is "cpu" too (verl/utils/megatron_utils.py:127 at 55e3c5b)
        return "cpu" if device.partition(":")[0] in _mapped_types or device == "cpu:cpu" else device
    if isinstance(device, torch.device):
        return CPU if device.type in _mapped_types else device
    if _maps_indices and isinstance(device, int) and not isinstance(device, bool):
        return CPU
    return device


def install() -> None:
    """Map "npu" to the CPU from now on."""
    torch.utils.rename_privateuse1_backend("npu")  # makes torch.device("npu") legal
    torch.accelerator.current_accelerator = _no_accelerator  # else the renamed backend counts as one
    torch._C._get_accelerator = _cpu_device  # called by torch.distributed.barrier
    _device._device_constructors()  # caches the functions that `with torch.device` acts on, before they are wrapped
    for name in _FACTORIES.split():
        setattr(torch, name, _with_cpu_device(getattr(torch, name)))
    for name in _TENSOR_METHODS.split():
        setattr(torch.Tensor, name, _with_cpu_device(getattr(torch.Tensor, name)))
    for holder in (torch.Tensor, torch.nn.Module):
        holder.to = _with_cpu_argument(holder.to)
        holder.npu = _unchanged
    torch.nn.Module.to_empty = _with_cpu_device(torch.nn.Module.to_empty)
    torch.Tensor.is_npu = property(lambda _: False)  # dynamo needs the property's getter
    torch.Tensor.pin_memory = _pin_memory
    torch.load = _with_cpu_map_location(torch.load)
    _device.DeviceContext.__init__ = _with_cpu_argument(_device.DeviceContext.__init__)


def map_cuda_too() -> None:
    """Map "cuda" and device indices to the CPU as well, for transfer_to_npu."""
    global _maps_indices
    _maps_indices = True
    _mapped_types.add("cuda")
    torch.Tensor.cuda = torch.nn.Module.cuda = _unchanged


def _cpu_device(*_: Any) -> torch.device:
    return torch.device("cpu")


def _no_accelerator(*_: Any, **__: Any) -> None:
    """Return None, since a CPU has no accelerator."""


def _unchanged(tensor_or_module: Any, *_: Any, **__: Any) -> Any:
    return tensor_or_module


def _pin_memory(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return a copy, as pinning does: verl offloads into it and then frees the original."""
    return tensor.detach().clone()


def _with_cpu_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_cpu(*arguments: Any, **named: Any) -> Any:
        if "device" in named:
            named["device"] = to_cpu(named["device"])
        named.pop("pin_memory", None)  # torch without an accelerator refuses to pin
        return original(*arguments, **named)

    builtin = _find_builtin(original)
    if builtin:
        _register_builtin(on_cpu, builtin)  # else torch.jit.script can't compile the function
    return on_cpu


def _with_cpu_argument(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose first argument, if it is a device, and argument `device` are mapped to the CPU."""

    @functools.wraps(original)
    def on_cpu(holder: Any, *arguments: Any, **named: Any) -> Any:
        if arguments:
            arguments = (to_cpu(arguments[0]), *arguments[1:])
        if "device" in named:
            named["device"] = to_cpu(named["device"])
        return original(holder, *arguments, **named)

    return on_cpu


def _with_cpu_map_location(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*arguments: Any, **named: Any) -> Any:
        if "map_location" in named:
            named["map_location"] = to_cpu(named["map_location"])
        elif len(arguments) > 1:
            arguments = (arguments[0], to_cpu(arguments[1]), *arguments[2:])
        return original(*arguments, **named)

    return load
