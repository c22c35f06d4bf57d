"""What stands in for compiled NPU code outside torch_npu. `install()` is called by the stand-in for torch_npu."""

from __future__ import annotations

from npu_rl_standins.hooks import after_import

from . import mindspeed_ops


def install() -> None:
    """Give MindSpeed's operators a CPU version as soon as its builders are imported."""
    for name in mindspeed_ops.MODULES:
        after_import(name, mindspeed_ops.put_in_place)
