"""Activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..registry import op, wide


@op
def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """silu(a) * b, where a and b are the halves of `self` along `dim`, whose size must be even.

    Differentiable. Source: op-plugin npu_swiglu; caller mindspeed/core/fusions/fused_bias_swiglu.py@7ff818c.
    """
    if self.shape[dim] % 2:
        raise ValueError(
            f"torch_npu.npu_swiglu: dimension {dim} has {self.shape[dim]} entries, an odd number"
        )
    gate, up = wide(self).chunk(2, dim)
    return (F.silu(gate) * up).to(self.dtype)
