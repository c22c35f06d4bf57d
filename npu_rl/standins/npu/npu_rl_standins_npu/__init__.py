"""Stand-ins for compiled NPU code outside torch_npu; torch_npu's stand-in calls `install()`."""

from __future__ import annotations

from npu_rl_standins.hooks import after_import

from . import mindspeed_ops


def install() -> None:
    """Give MindSpeed's ops a CPU version once its builders are imported."""
    for name in mindspeed_ops.MODULES:
        after_import(name, mindspeed_ops.install_in)
