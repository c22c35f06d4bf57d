"""Adaptation host-copies: tensordict waits for an NPU's copies to the host before it returns them.

verl's workers return their results with `output.to("cpu")` (verl/workers/fsdp_workers.py:798@796871d). tensordict 0.9.1
starts these copies without blocking and then calls `TensorDictBase._sync_all` (base.py:14070), which waits for CUDA and
MPS only. verl cc2799b235 (2025-08-28) replaces it on NPUs, "otherwise, unexpected precision issues may arise".

After an import of `torch_npu.contrib.transfer_to_npu`, such as MindSpeed's megatron_adaptor does, torch.cuda is
torch.npu, and tensordict's branch for CUDA already waits for the NPU. FSDP's workers don't import it. A late copy has
not been observed on an NPU.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "host-copies"


def wait_for_npu() -> None:
    """Make tensordict's `_sync_all` wait for the NPU too in this process, after upstream's own waits."""
    if not enabled(SLUG):
        return
    from tensordict.base import TensorDictBase

    upstream = getattr(TensorDictBase, "_sync_all", None)
    if upstream is None:  # versions without it copy blocking
        return

    def _sync_all(self: Any) -> None:
        upstream(self)
        _wait()

    TensorDictBase._sync_all = _sync_all


def _wait() -> None:
    import torch

    npu = getattr(torch, "npu", None)  # torch_npu may be imported after verl
    if npu is None or not npu.is_initialized():  # the driver has no NPU; it must not open one
        return
    count(SLUG)
    npu.synchronize()
