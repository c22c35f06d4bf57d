"""Softmax over attention scores."""

from __future__ import annotations

import torch

from ..registry import op, wide

_MASKED = -10000.0  # what the kernel writes where the mask is True; not minus infinity


@op
def npu_scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1.0, fixed_triu_mask: bool = False
) -> torch.Tensor:
    """Softmax over the last dimension of scale * x, with -10000 where `mask` is True.

    Differentiable in x. The NPU requires Sq and Sk to be multiples of 32 up to 4096, which is not checked.
    Source: op-plugin docs; caller mindspeed/core/fusions/fused_softmax.py@7ff818c.

    Args:
        x: (..., Sq, Sk).
        mask: Bool, broadcasting to x.
        fixed_triu_mask: Whether the mask is the upper triangle above the diagonal, and `mask` is not read.
    """
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    elif mask.dtype != torch.bool:
        raise TypeError(f"torch_npu.npu_scaled_masked_softmax: mask must be bool, not {mask.dtype}")
    return (wide(x) * scale).masked_fill(mask, _MASKED).softmax(-1).to(x.dtype)
