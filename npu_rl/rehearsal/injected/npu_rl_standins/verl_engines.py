"""What verl 0.8's engines ask of a device, on a CPU: a registered engine, and packing without CUDA.

Engines are registered for `cuda` and `npu` only (verl/workers/engine/base.py:318@v0.8.0): a CPU gets the NPU's, which
the run has; for Megatron that is MindSpeed's. verl 0.5 has none of these modules, and is left as it is.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .hooks import after_import
from .used import count


def install() -> None:
    """Let a CPU have the engines of an NPU, verl's own packing of sequences for NPUs, and no device's number."""
    after_import("verl.workers.engine.base", _register_on_cpu)
    after_import("verl.utils.attention_utils", _pack_as_on_npu)
    after_import("verl.utils.ray_utils", _have_no_device_ids)


def _register_on_cpu(module: ModuleType) -> None:
    registry = module.EngineRegistry  # type: ignore[attr-defined]
    original = registry.get_engine_cls.__func__

    def get_engine_cls(cls: Any, model_type: str, backend: str) -> Any:
        by_device = cls._engines[model_type][backend]
        if "npu" in by_device:
            count("verl.workers.engine.base.EngineRegistry")
            by_device["cpu"] = by_device["npu"]
        return original(cls, model_type, backend)

    registry.get_engine_cls = classmethod(get_engine_cls)


def _pack_as_on_npu(module: ModuleType) -> None:
    """Take verl's plain-torch functions for NPUs; the others are of flash_attn (verl/utils/attention_utils.py:30)."""

    def _get_attention_functions() -> Any:
        from verl.utils.npu_flash_attn_utils import index_first_axis, pad_input, rearrange, unpad_input

        count("verl.utils.attention_utils")
        return index_first_axis, pad_input, rearrange, unpad_input

    module._get_attention_functions = _get_attention_functions  # type: ignore[attr-defined]


def _have_no_device_ids(module: ModuleType) -> None:
    """Let no worker ask Ray for its NPU's number, as a stack does whose NPUs are all visible to each worker.

    Source: verl/single_controller/base/worker.py:275@v0.8.0. A CPU's workers have no number.
    """

    def ray_noset_visible_devices(*_: Any) -> bool:
        count("verl.utils.ray_utils.ray_noset_visible_devices")
        return False

    module.ray_noset_visible_devices = ray_noset_visible_devices  # type: ignore[attr-defined]
