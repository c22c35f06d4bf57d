"""torch.cpu with the functions that verl calls on a device's namespace.

verl uses `torch.cpu` as the device on a machine without accelerators (verl/utils/device.py:67 at 0.5.0) and asks it
for caches, memory and random states. Real: the random states, the peak memory of the process. Stood in for: everything
about a device's allocator. Pinned memory is ordinary memory.
"""

from __future__ import annotations

import resource
import sys
from types import ModuleType
from typing import Any

from .used import count


def _install_in(torch: ModuleType) -> None:
    if torch.accelerator.is_available():
        raise RuntimeError(
            f"the stand-ins for a CPU are installed where torch has {torch.accelerator.current_accelerator()}: "
            "set CUDA_VISIBLE_DEVICES= (or the like) so that nothing runs on it by accident"
        )
    torch.Tensor.pin_memory = _pin_memory
    torch.histc = _of_integers_too(torch.histc)  # type: ignore[attr-defined]
    for name, function in _namespace(torch).items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, _counted(name, function))


def _pin_memory(tensor: Any, *_: Any, **__: Any) -> Any:
    """Return a copy, like pinning, since verl offloads weights into it and frees the original.

    Sources: verl/utils/megatron_utils.py:337 at 55e3c5b; FSDP1's CPUOffload, which also pins.
    """
    count("torch.Tensor.pin_memory")
    return tensor.detach().clone()


def _of_integers_too(original: Any) -> Any:
    """Compute torch.histc for integers too, which CUDA and NPUs support but CPUs don't.

    Source: mindspeed_llm/core/transformer/moe/moe_utils.py:172@v2.0.0.
    """

    def histc(tensor: Any, *arguments: Any, **named: Any) -> Any:
        if tensor.is_floating_point():
            return original(tensor, *arguments, **named)
        count("torch.histc")
        return original(tensor.double(), *arguments, **named).to(tensor.dtype)

    return histc


def _namespace(torch: ModuleType) -> dict[str, Any]:
    def peak(*_: Any) -> int:
        """Return the peak resident bytes of this process: ru_maxrss is kB on Linux, bytes on macOS."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    return {
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "reset_peak_memory_stats": lambda *_: None,
        "memory_allocated": peak,
        "memory_reserved": peak,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "mem_get_info": lambda *_: (0, 0),
        "get_device_name": lambda *_: "CPU (npu-rl's stand-in)",
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }


def _counted(name: str, function: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        count(f"torch.cpu.{name}")
        return function(*arguments, **named)

    call.__name__ = name
    return call


HOOKS = {"torch": _install_in}
