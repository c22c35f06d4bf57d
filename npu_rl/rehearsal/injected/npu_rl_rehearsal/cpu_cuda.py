"""The parts of torch.cuda that Megatron-core uses, for a machine without CUDA. Tensors stay on the CPU.

It is used if the tree has no MindSpeed; else torch_npu's `transfer_to_npu` does this and more. Nothing is computed
differently: streams do nothing, and the device's random numbers are the CPU's.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")

STOOD_IN = (
    "torch.cuda (device, streams, random state): the CPU",
    "tensors asked for on a CUDA device: the CPU's",
)


def install() -> None:
    """Replace functions of torch.cuda, before Megatron-core imports them by name."""
    cuda: Any = torch.cuda
    # A function for each name: torch's compiler refuses one function under two names.
    cuda.current_device = lambda: _CPU
    cuda.device_count = lambda: 1
    cuda.is_initialized = lambda: True
    for name in ("synchronize", "empty_cache", "set_device", "_lazy_init"):
        setattr(cuda, name, lambda *_args, **_kwargs: None)
    cuda.Stream = cuda.Event = _Stream
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda *_args: _Stream())
    for name in ("stream", "device"):
        setattr(cuda, name, lambda *_args: contextlib.nullcontext())
    cuda._lazy_call = lambda call, **_kwargs: call()
    cuda.default_generators = _Generators()
    for name in ("manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda seed: torch.default_generator.manual_seed(seed))
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
        module.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


class OnCpu(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """A mode that creates tensors for a CUDA device on the CPU, and makes `.cuda()` do nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        return function(*(_CPU if _is_cuda(value) else value for value in args), **kwargs)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


class _Stream:
    """A stream or event that does nothing and equals every other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def wait_stream(self, stream: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return self if event is None else event

    synchronize = record = wait = wait_event = lambda *_args: None


class _Generators:
    """The CPU's random number generator, for every device."""

    def __getitem__(self, device: object) -> torch.Generator:
        return torch.default_generator
