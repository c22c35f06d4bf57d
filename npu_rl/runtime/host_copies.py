"""Adaptation host-copies: tensordict waits for an NPU's copies to the host before it hands them out.

verl's workers return their results by `output.to("cpu")` (verl/workers/fsdp_workers.py:798@796871d). tensordict 0.9.1
starts these copies without blocking and then calls `TensorDictBase._sync_all` (base.py:14070), which waits for CUDA and
MPS only. verl cc2799b235 (2025-08-28) replaces it on NPUs, "otherwise, unexpected precision issues may arise".

Where `torch_npu.contrib.transfer_to_npu` was imported, as by MindSpeed's megatron_adaptor, torch.cuda is torch.npu,
and tensordict's branch for CUDA waits for the NPU already; FSDP's workers import nothing of it. No NPU has been seen
to be late.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "host-copies"


def wait_for_npu() -> None:
    """Have tensordict's `_sync_all` wait for the NPU as well, in this process; upstream's own waits come first."""
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
