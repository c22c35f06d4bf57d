"""Rotary position embeddings."""

from __future__ import annotations

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Return (-second half, first half) of the last dimension."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_pairs(x: torch.Tensor) -> torch.Tensor:
    """Return (-x1, x0, -x3, x2, ...) along the last dimension."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, by_pairs: bool) -> torch.Tensor:
    """Return x * cos + rotated(x) * sin, computed in the wide type and rounded to x's."""
    turned = rotate_pairs(wide(x)) if by_pairs else rotate_half(wide(x))
    return (wide(x) * wide(cos) + turned * wide(sin)).to(x.dtype)


@op
def npu_rotary_mul(
    self: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotary embedding with cosines r1 and sines r2, which broadcast to `self` (4 dimensions, D even).

    Differentiable. Not supported: rotate (a matrix). Source: op-plugin test_npu_rotary_mul.py.

    Args:
        r1: Cosines, which broadcast to self.
        r2: Sines, which broadcast to self.
        rotary_mode: "half" pairs entry i with i + D/2, "interleave" pairs neighbours.
    """
    refuse("npu_rotary_mul", rotate=rotate)
    if rotary_mode not in ("half", "interleave"):
        raise UnsupportedArgument("torch_npu.npu_rotary_mul", "rotary_mode", rotary_mode)
    return _rotary("npu_rotary_mul", self, r1, r2, by_pairs=rotary_mode == "interleave")


@op
def npu_rotary_position_embedding(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: int = 0
) -> torch.Tensor:
    """Rotary embedding; mode 0 pairs entry i with i + D/2, mode 1 neighbours.

    Differentiable. x, cos and sin have 4 dimensions, cos and sin broadcast to x and have one shape, and D is even,
    which is checked as on the NPU. Source: mindspeed/ops/csrc/cann/npu_rotary_position_embedding.cpp@7ff818c.
    """
    if mode not in (0, 1):
        raise UnsupportedArgument("torch_npu.npu_rotary_position_embedding", "mode", mode)
    return _rotary("npu_rotary_position_embedding", x, cos, sin, by_pairs=mode == 1)


def _rotary(name: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, by_pairs: bool) -> torch.Tensor:
    if x.dim() != 4 or cos.dim() != 4 or cos.shape != sin.shape:
        raise ValueError(
            f"torch_npu.{name}: x, cos and sin must have 4 dimensions, cos and sin the same ones; "
            f"got {tuple(x.shape)}, {tuple(cos.shape)}, {tuple(sin.shape)}"
        )
    if x.shape[-1] % 2 or cos.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"torch_npu.{name}: the last dimension must be even and the same for x, cos and sin; "
            f"got {x.shape[-1]} and {cos.shape[-1]}"
        )
    return rotate(x, cos, sin, by_pairs)


@op
def npu_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of pairs kept side by side; the result has its halves apart.

    x is (B, N, S, D), cos and sin are (B, 1, S or 1, D). The NPU requires D = 64; here any even D is possible.
    Source: op-plugin docs; caller vllm_ascend/attention/mla_v1.py@v0.9.1rc2, in the witness of kv-nz-prefill.
    """
    return rotate(torch.cat((x[..., ::2], x[..., 1::2]), -1), cos, sin, by_pairs=False)
