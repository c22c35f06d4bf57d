"""Grouped matrix products: one product for each expert."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide

_NO_GROUPS, _ROWS, _INNER = -1, 0, 2


def group_ends(name: str, group_list: Any, group_list_type: int, length: int) -> list[int]:
    """Return where each group ends, from ends (type 0) or sizes (type 1). Raises unless they divide `length` rows."""
    if group_list_type not in (0, 1):
        raise UnsupportedArgument(f"torch_npu.{name}", "group_list_type", group_list_type)
    numbers = [int(number) for number in group_list]
    ends, last = [], 0
    for number in numbers:
        end = number if group_list_type == 0 else last + number
        if end < last or end > length:
            raise ValueError(
                f"torch_npu.{name}: group_list {numbers} (type {group_list_type}) doesn't divide {length} rows"
            )
        ends.append(end)
        last = end
    return ends


def matmul_by_rows(
    x: torch.Tensor, weights: Sequence[torch.Tensor], ends: Sequence[int]
) -> list[torch.Tensor]:
    """Return x[group] @ weight for each group of rows."""
    starts = [0, *ends]
    return [product(x[start:end], w) for start, end, w in zip(starts, ends, weights, strict=False)]


def matmul_by_inner(x: torch.Tensor, y: torch.Tensor, ends: Sequence[int]) -> list[torch.Tensor]:
    """Return x[:, group] @ y[group] for each group of the inner dimension; zeros for an empty group."""
    starts = [0, *ends]
    return [product(x[:, start:end], y[start:end]) for start, end in zip(starts, ends, strict=False)]


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x @ y, computed in the wide type and rounded to x's."""
    return (wide(x) @ wide(y)).to(x.dtype)


@op
def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    scale: Any = None,
    offset: Any = None,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
    per_token_scale: Any = None,
    group_list: Any = None,
    activation_input: Any = None,
    activation_quant_scale: Any = None,
    activation_quant_offset: Any = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Any = None,
    output_dtype: Any = None,
) -> list[torch.Tensor]:
    """Matrix product x_i @ weight_i + bias_i for each group i.

    Differentiable. Not supported: quantisation, activations.
    Source: op-plugin docs; callers in vllm_ascend/ops/fused_moe.py@v0.9.1rc2.

    Args:
        x: For group_type -1 one tensor per group, else one (M, K).
        weight: For group_type -1 one tensor per group; for 0 one (E, K, N) or E of (K, N); for 2 one (K, N).
        bias: One (E, N), or one (N,) per group.
        group_list: Ends (group_list_type 0) or sizes (1) of the groups.
        split_item: 0 or 1 for a list with a tensor per group, 2 or 3 for a list with one tensor, in which rows after
            the last group are zero (the NPU leaves them as they are).
        group_type: -1 for pairs of x and weight; 0 if the rows of x are divided; 2 if the inner dimension is divided,
            for a result of (E, M, N); None for 0 with a group_list, else -1.
    """
    name = "npu_grouped_matmul"
    refuse(
        name, scale=scale, offset=offset, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset
    )
    refuse(
        name, per_token_scale=per_token_scale, activation_input=activation_input, act_type=act_type or None
    )
    refuse(
        name, activation_quant_scale=activation_quant_scale, activation_quant_offset=activation_quant_offset
    )
    refuse(name, output_dtype=output_dtype)
    kind = group_type if group_type is not None else _NO_GROUPS if group_list is None else _ROWS
    if kind == _NO_GROUPS:
        parts = [product(a, b) for a, b in zip(x, weight, strict=True)]
        rows = sum(part.shape[0] for part in parts)
    elif kind == _ROWS:
        rows = _single(name, "x", x).shape[0]
        weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
        ends = group_ends(name, group_list, group_list_type or 0, rows)
        if len(ends) != len(weights):
            raise ValueError(f"torch_npu.{name}: {len(ends)} groups and {len(weights)} weights")
        parts = matmul_by_rows(x[0], weights, ends)
    elif kind == _INNER:
        inner = _single(name, "x", x).shape[1]
        ends = group_ends(name, group_list, group_list_type or 0, inner)
        return [torch.stack(matmul_by_inner(x[0], _single(name, "weight", weight), ends))]
    else:
        raise UnsupportedArgument(f"torch_npu.{name}", "group_type", group_type)
    if bias is not None:
        parts = [part + b.to(part.dtype) for part, b in zip(parts, _per_group(bias, len(parts)), strict=True)]
    if split_item in (0, 1, None):
        return parts
    whole = torch.cat(parts)
    left = rows - whole.shape[0]
    return [torch.cat((whole, whole.new_zeros(left, whole.shape[1]))) if left else whole]


def _per_group(bias: Sequence[torch.Tensor], groups: int) -> list[torch.Tensor]:
    return list(bias[0]) if len(bias) == 1 and bias[0].dim() == 2 and groups > 1 else list(bias)


def _single(name: str, argument: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise UnsupportedArgument(
            f"torch_npu.{name}", argument, list(tensors), f"{len(tensors)} tensors with this group_type"
        )
    return tensors[0]
