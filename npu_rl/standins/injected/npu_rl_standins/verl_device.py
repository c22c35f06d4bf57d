"""verl's choice of a device: on a CPU it has no backend for collectives and raises; gloo is one.

Source: verl/utils/device.py:79 (get_nccl_backend) at 0.5.0.
"""

from __future__ import annotations

from types import ModuleType

from .hooks import after_import
from .used import count


def install() -> None:
    """Make gloo verl's backend for collectives."""
    after_import("verl.utils.device", _install_in)


def _install_in(module: ModuleType) -> None:
    def get_nccl_backend() -> str:
        count("verl.utils.device.get_nccl_backend")
        return "gloo"

    module.get_nccl_backend = get_nccl_backend  # type: ignore[attr-defined]
