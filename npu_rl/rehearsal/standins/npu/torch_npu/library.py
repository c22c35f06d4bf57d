"""Register Python kernels for the NPU as kernels for CPU tensors.

MindSpeed (mindspeed/ops/gmm.py@7ff818c) and vllm-ascend (vllm_ascend/platform.py@v0.9.1rc2) register ops with
torch.library for the dispatch key "PrivateUse1", torch's name for an NPU. An op with a kernel for the CPU keeps it,
and so do torch's own, which are registered for both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_ON_CPU = {"PrivateUse1": "CPU", "AutogradPrivateUse1": "AutogradCPU"}


def install() -> None:
    """Redirect registrations from now on; a second call has no effect."""
    original = torch.library.Library.impl
    if getattr(original, "npu_rl_standin", False):
        return

    @functools.wraps(original)
    def impl(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **named: Any) -> None:
        if dispatch_key in _ON_CPU and not _has_cpu_kernel(library, op_name, fn, _ON_CPU[dispatch_key]):
            dispatch_key = _ON_CPU[dispatch_key]
        original(library, op_name, fn, dispatch_key, **named)

    impl.npu_rl_standin = True  # type: ignore[attr-defined]
    torch.library.Library.impl = impl


def _has_cpu_kernel(library: Any, op_name: Any, fn: Any, key: str) -> bool:
    if str(getattr(fn, "__module__", "")).startswith("torch."):
        return True
    name = op_name if isinstance(op_name, str) else op_name.name()
    qualified = name if "::" in name else f"{library.ns}::{name}"
    known = torch._C._dispatch_has_kernel(qualified)
    return bool(known and torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key))
