"""Description of the difference between a tensor and the expected one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from npu_rl_tensors.formats.boxes import Box, slices

OFFSET_FREE = ".e_score_correction_bias"
"""A router's bias: an offset that all experts have changes nothing, so a sync may change it.

Source: DeepSeek-AI 2024, arXiv:2412.19437, 2.1.2; npu_rl_runtime/router_bias.py may subtract one.
"""

_MANTISSAS = (2, 3, 7, 10)
"""Stored bits of E5M2, E4M3, bfloat16 and float16."""
_LEAST_FP8 = 2.0**-9  # E4M3's step near zero

Tensors = Mapping[str, torch.Tensor]


def _without_offset(bias: torch.Tensor) -> torch.Tensor:
    return bias.double() - bias.double().min()


def equal(name: str, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether the values equal the expected ones, in the dtype of `got`.

    A router's bias may differ by an offset of all entries and the rounding of its type. In bfloat16, whose steps grow
    with the offset, it may not have more than twice the magnitude that it needs.
    """
    if not name.endswith(OFFSET_FREE):
        return torch.equal(got, want.to(got.dtype))
    one, other = got.double(), want.double()
    is_coarse = got.dtype == torch.bfloat16
    rounding = (2.0**-8 if is_coarse else 2.0**-22) * one.abs() + 1e-6
    offsets = other - one
    shares_one = bool((offsets - rounding).max() <= (offsets + rounding).min())
    return shares_one and not (is_coarse and _is_far_from_zero(one, other))


def _is_far_from_zero(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether another offset would halve the largest magnitude, of all but the lowest eighth: outliers.

    Not if one of these, less than 1 below the others, can be chosen and would end with a larger magnitude than it has.
    """
    low = want.sort().values[want.numel() // 8]
    moved = want - low
    if ((moved.abs() > want.abs()) & (moved > -1)).any():
        return False
    return bool(got[moved >= 0].abs().max() > 2 * (1 + 2.0**-7) * moved.max())


def loaded(name: str, got: torch.Tensor, saved: torch.Tensor) -> bool:
    """Return whether trainer and checkpoint agree in the trainer's dtype (for a router's bias, in both dtypes)."""
    return torch.equal(got, saved.to(got.dtype)) and (
        not name.endswith(OFFSET_FREE) or torch.equal(got.to(saved.dtype), saved)
    )


def difference(name: str, box: Box, got: torch.Tensor, wanted: Tensors, before: Tensors) -> str:
    """Describe the values that are in the box instead of those of `wanted[name]`.

    Args:
        wanted: All tensors of the model.
        before: All tensors at the previous sync; empty at the first one.
    """
    want = wanted[name][slices(box)]
    if not bool(torch.isfinite(got.float()).all()):
        return "values that are not finite"
    if not bool(got.any()):
        return "zeros"
    if torch.equal(got, want.to(got.dtype)):  # a bias in a type that has no room for it
        return "rounded"
    if name in before and equal(name, got, before[name][slices(box)]):
        return "stale: the values of the sync before"
    if _has_exchanged_shards(got, want):
        return "its own shards in another order"
    if other := _owner(name, box, got, wanted):
        return f"the values of {other}"
    if _is_rounded_bias(got, want) if name.endswith(OFFSET_FREE) else _is_rounded(got, want):
        return "rounded"
    return "other values"


def _owner(name: str, box: Box, got: torch.Tensor, wanted: Tensors) -> str:
    """Return the tensor of the model that the values belong to, or ""."""
    if got.numel() < 2:
        return ""
    for other, values in wanted.items():
        if other == name and _is_whole(box, values):
            continue
        for start in range(0, max(values.shape[0] - got.shape[0], 0) + 1, max(got.shape[0], 1)):
            part = values[start : start + got.shape[0]]
            same_place = other == name and start == box[0][0]
            if not same_place and part.shape == got.shape and torch.equal(got, part.to(got.dtype)):
                rows = "" if part.shape == values.shape else f"[{start}:{start + got.shape[0]}]"
                return f"{other}{rows}"
    return ""


def _is_whole(box: Box, values: torch.Tensor) -> bool:
    return all(stop - start == size for (start, stop), size in zip(box, values.shape, strict=True))


def _has_exchanged_shards(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether the tensor consists of the expected equal shards along an axis, in another order."""
    want = want.to(got.dtype)
    for axis, size in enumerate(got.shape):
        for count in (2, 4, 8):
            if size % count:
                continue
            shards = list(want.chunk(count, axis))
            if all(any(torch.equal(one, shard) for shard in shards) for one in got.chunk(count, axis)):
                return True
    return False


def _is_rounded(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether the values are the expected ones rounded to fewer bits than their dtype has."""
    one, other = got.double(), want.double()
    if bool((one == one.flatten()[0]).all()):
        return False
    for bits in _MANTISSAS:
        mantissa = one.frexp().mantissa * 2 ** (bits + 1)
        if torch.equal(mantissa, mantissa.round()):
            return bool(((one - other).abs() <= 2.0**-bits * other.abs() + _LEAST_FP8).all())
    return False


def _is_rounded_bias(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether each bias is within a bfloat16 step of the expected one, at its size including the offset."""
    step = 2.0**-7 * want.double().abs().max()
    return bool(((_without_offset(got) - _without_offset(want)).abs() <= step).all())


def norms(want: Any, got: Any) -> tuple[float, float]:
    """Return both Euclidean norms."""
    return float(want.double().norm()), float(got.double().norm())
