"""Root-mean-square norms."""

from __future__ import annotations

import torch

from ..registry import op, wide


@op
def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm over the last dimensions, those of `gamma`.

    self (..., *gamma.shape), any float type; gamma like torch_npu's: self's type or float32. Returns y of self's
    shape and type, and 1/rms as float32 of self's shape with gamma's dimensions 1.
    Source: op-plugin test_npu_rms_norm.py. Differentiable in self and gamma.
    """
    dims = tuple(range(-gamma.dim(), 0))
    x = wide(self)
    rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)
    return (x * rstd * wide(gamma)).to(self.dtype), rstd.detach()


@op
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The RMS norm of x1 + x2 over the last dimensions, those of `gamma`.

    x1, x2 (..., *gamma.shape) of one type. Returns y, 1/rms (float32) and the sum, which is the next residual.
    The sum is rounded to x1's type before it is returned, not before it is normed.
    Source: op-plugin test_npu_add_rms_norm.py; caller vllm_ascend/ops/layernorm.py@v0.9.1rc2.
    """
    dims = tuple(range(-gamma.dim(), 0))
    x = wide(x1) + wide(x2)
    rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)
    return (x * rstd * wide(gamma)).to(x1.dtype), rstd.detach(), x.to(x1.dtype)
