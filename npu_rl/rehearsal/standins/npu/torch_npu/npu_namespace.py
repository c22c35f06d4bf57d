"""torch.npu with one device that is the CPU and never available, and its memory, random state and streams.

Real: random states (the CPU's generator), memory of the process. Stood in for: streams and events, which order
nothing, caches and device settings, which do nothing. `is_available()` is False, so that code which asks (verl,
transformers, accelerate) takes its CPU path. `device_count()` is 1, as torch.cpu counts the CPU. Everything else that
torch.npu has on an NPU raises `NoCpuVersion` when it is looked up.
"""

# ruff: noqa: ARG001, ARG005  the signatures are torch_npu's

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from . import memory
from .missing import raise_missing
from .streams import Event, Stream, current_stream, set_stream, stream

DEVICE_NAME = "CPU stand-in (npu-rl)"

_TENSOR_TYPES = (
    "BFloat16Tensor BoolTensor ByteTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor"
)
_DO_NOTHING = """
    _lazy_init empty_cache init ipc_collect reset_max_memory_allocated reset_peak_memory_stats set_compile_mode
    set_device set_option set_sync_debug_mode synchronize
"""


def build() -> ModuleType:
    """Create torch.npu, which can also be imported as torch_npu.npu."""
    npu = ModuleType("torch_npu.npu", __doc__)
    npu.__path__ = []
    npu.__getattr__ = functools.partial(raise_missing, "torch.npu")  # type: ignore[method-assign]
    names: dict[str, Any] = {
        "NPU_RL_STANDIN": True,
        "config": SimpleNamespace(allow_internal_format=False),
        # With the other names of torch.cuda.amp, in whose place transfer_to_npu puts it.
        "amp": SimpleNamespace(
            **{**vars(torch.cuda.amp), "autocast": functools.partial(torch.autocast, "cpu")}
        ),
        "mstx": SimpleNamespace(range_start=_do_nothing("range_start"), range_end=_do_nothing("range_end")),
        **{name: _do_nothing(name) for name in _DO_NOTHING.split()},
        **{name: getattr(torch, name) for name in _TENSOR_TYPES.split()},
        **_device_names(),
        **_random_names(),
        **_memory_names(),
        **_stream_names(),
    }
    for name, value in names.items():
        setattr(npu, name, value)
    for name in ("random", "streams"):
        sys.modules[f"torch_npu.npu.{name}"] = npu  # `from torch_npu.npu.streams import Event`
    npu.random = npu  # type: ignore[attr-defined]
    sys.modules["torch_npu.npu"] = sys.modules["torch.npu"] = npu
    torch.npu = npu
    return npu


def _do_nothing(name: str) -> Callable[..., None]:
    def do_nothing(*_: Any, **__: Any) -> None:
        """Do nothing."""

    # A function for each name: torch's compiler refuses one function under two names of torch.cuda.
    do_nothing.__name__ = name
    return do_nothing


def _device_names() -> dict[str, Any]:
    def properties(device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name=DEVICE_NAME, total_memory=memory.total_memory())

    return {
        "is_available": lambda: False,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_call": lambda call, **_: call(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda *_: nullcontext(),
        "get_device_name": lambda device=None: DEVICE_NAME,
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: None,  # as torch_npu returns
        "is_bf16_supported": lambda: True,
    }


def _random_names() -> dict[str, Any]:
    def seed_cpu(seed: int) -> None:
        torch.default_generator.manual_seed(int(seed))  # torch.manual_seed would call this function again

    return {
        "manual_seed": lambda seed: seed_cpu(seed),
        "manual_seed_all": lambda seed: seed_cpu(seed),
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda new_state, device=None: torch.set_rng_state(new_state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda new_states: torch.set_rng_state(new_states[0]),
        "default_generators": (torch.default_generator,),
    }


def _memory_names() -> dict[str, Any]:
    return {
        "memory_allocated": memory.memory_allocated,
        "memory_reserved": lambda device=None: memory.memory_allocated(),
        "max_memory_allocated": memory.max_memory_allocated,
        "max_memory_reserved": lambda device=None: memory.max_memory_allocated(),
        "mem_get_info": memory.mem_get_info,
        "memory_stats": memory.memory_stats,
    }


def _stream_names() -> dict[str, Any]:
    return {
        "Event": Event,
        "ExternalEvent": Event,
        "ExternalStream": Stream,
        "Stream": Stream,
        "current_stream": current_stream,
        "default_stream": lambda device=None: current_stream(),
        "set_stream": set_stream,
        "stream": stream,
    }
