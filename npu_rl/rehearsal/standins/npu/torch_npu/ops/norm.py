"""Root-mean-square norms."""

from __future__ import annotations

import torch

from ..registry import op, wide


@op
def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm over the last dimensions, those of `gamma`.

    Differentiable in self and gamma. Source: op-plugin test_npu_rms_norm.py.

    Args:
        self: (..., *gamma.shape), any float type.
        gamma: In self's type or float32, as torch_npu's.

    Returns:
        The norm with self's shape and type, and 1/rms as float32 with self's shape, gamma's dimensions being 1.
    """
    dims = tuple(range(-gamma.dim(), 0))
    x = wide(self)
    rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)
    return (x * rstd * wide(gamma)).to(self.dtype), rstd.detach()
