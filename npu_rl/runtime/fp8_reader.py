"""Adaptation fp8-reader: mbridge reads DeepSeek's FP8 checkpoints without CUDA.

mbridge opens the files on the device `cuda` and computes BF16 weights with a Triton kernel
(mbridge/models/ext/deepseek_v3/dequant_fp8_safetensor_io.py:34@0cd4ae23). Its other bridges read on the CPU, and
`load_weights` moves each tensor to its parameter's device (mbridge/core/bridge.py:232@0cd4ae23). This adaptation does
the same: NPUs before Ascend 950 have no FP8, and a rank's weights need no second copy on its device.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "fp8-reader"
_BLOCK = 128  # rows and columns that share a scale, as in mbridge's kernel


def device() -> str:
    """Return the device on which checkpoint files are opened."""
    return "cpu" if enabled(SLUG) else "cuda"


def weight_dequant(weight: Any, scale_inv: Any, name: str) -> Any:
    """Return `float32(weight) * scale_inv` per block, rounded to BF16.

    Args:
        weight: float8_e4m3fn [rows, columns].
        scale_inv: float32 [ceil(rows / 128), ceil(columns / 128)].
        name: The weight's, for the error.

    Raises:
        ValueError: `scale_inv` has another shape, as of blocks of another size.
    """
    import torch

    if not enabled(SLUG):
        from mbridge.models.ext.deepseek_v3.kernel import weight_dequant as upstream

        return upstream(weight, scale_inv)
    blocks = [-(-size // _BLOCK) for size in weight.shape]
    if list(scale_inv.shape) != blocks:
        raise ValueError(
            f"{name}_scale_inv: shape {list(scale_inv.shape)} instead of {blocks}: one scale for each "
            f"{_BLOCK} x {_BLOCK} block of {name}, shape {list(weight.shape)}"
        )
    count(SLUG)
    found = torch.empty(weight.shape, dtype=torch.bfloat16)
    # A block of rows at a time: in float32 all of a weight would take four times its memory.
    for rows, out, scales in zip(weight.split(_BLOCK), found.split(_BLOCK), scale_inv.float(), strict=True):
        factors = scales.repeat_interleave(_BLOCK)[: weight.shape[1]]
        out.copy_(rows.float() * factors)
    return found
