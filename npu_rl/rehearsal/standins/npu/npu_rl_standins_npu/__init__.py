"""Stand-ins for compiled NPU code outside torch_npu; torch_npu's stand-in calls `install()`."""

from __future__ import annotations

from npu_rl_standins.hooks import after_import

from . import grouped_weights, kernels, mindspeed_ops, transformers_ops


def install() -> None:
    """Give MindSpeed's ops a CPU version, and patched models of transformers torch_npu, once they are imported."""
    for ops in (mindspeed_ops, grouped_weights, kernels, transformers_ops):
        for name in ops.MODULES:
            after_import(name, ops.install_in)
