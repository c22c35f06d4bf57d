"""What stands in for compiled NPU code outside torch_npu. `install()` is called by the stand-in for torch_npu."""

from __future__ import annotations

from . import mindspeed_ops
from .hooks import after_import


def install() -> None:
    """Give MindSpeed's operators a CPU version as soon as its builders are imported."""
    for name in mindspeed_ops.MODULES:
        after_import(name, mindspeed_ops.put_in_place)
