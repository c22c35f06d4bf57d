"""Python kernels that are registered for the NPU serve CPU tensors.

MindSpeed (mindspeed/ops/gmm.py@7ff818c) and vllm-ascend (vllm_ascend/platform.py@v0.9.1rc2) register operators
with torch.library for the dispatch key "PrivateUse1", which is what torch calls an NPU. An operator that has a
kernel for the CPU keeps it, and so do torch's own, which come for both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_ON_CPU = {"PrivateUse1": "CPU", "AutogradPrivateUse1": "AutogradCPU"}


def install() -> None:
    """Redirect registrations from now on. Doing it again changes nothing."""
    original = torch.library.Library.impl
    if getattr(original, "npu_rl_standin", False):
        return

    @functools.wraps(original)
    def impl(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **named: Any) -> None:
        if dispatch_key in _ON_CPU and not _has_its_own(library, op_name, fn, _ON_CPU[dispatch_key]):
            dispatch_key = _ON_CPU[dispatch_key]
        original(library, op_name, fn, dispatch_key, **named)

    impl.npu_rl_standin = True  # type: ignore[attr-defined]
    torch.library.Library.impl = impl


def _has_its_own(library: Any, op_name: Any, fn: Any, key: str) -> bool:
    if str(getattr(fn, "__module__", "")).startswith("torch."):
        return True
    name = op_name if isinstance(op_name, str) else op_name.name()
    qualified = name if "::" in name else f"{library.ns}::{name}"
    known = torch._C._dispatch_has_kernel(qualified)
    return bool(known and torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key))
