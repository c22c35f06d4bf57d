"""FSDP1 with parameters that stay on the CPU.

torch refuses `sync_module_states=True` for them (torch/distributed/fsdp/_init_utils.py,
_check_module_states_for_sync_module_states), since NCCL could not broadcast them; gloo can.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .used import count


def _install_in(module: ModuleType) -> None:
    def accept(module_states: Any) -> None:
        del module_states
        count("fsdp.sync_module_states")

    if not hasattr(module, "_check_module_states_for_sync_module_states"):
        raise RuntimeError("torch's FSDP has no _check_module_states_for_sync_module_states any more")
    module._check_module_states_for_sync_module_states = accept  # type: ignore[attr-defined]


HOOKS = {"torch.distributed.fsdp._init_utils": _install_in}
