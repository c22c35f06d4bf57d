"""verl's device choice: on a CPU it knows no backend for collectives and raises; gloo is one.

Source: verl/utils/device.py:79 (get_nccl_backend) at 0.5.0.
"""

from __future__ import annotations

from types import ModuleType

from .hooks import after_import
from .used import count


def install() -> None:
    after_import("verl.utils.device", _change)


def _change(module: ModuleType) -> None:
    def get_nccl_backend() -> str:
        count("verl.utils.device.get_nccl_backend")
        return "gloo"

    module.get_nccl_backend = get_nccl_backend  # type: ignore[attr-defined]
