"""Grouped matrix products: one product for each expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide

_ROWS, _INNER = 0, 2


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
    group_list: Any = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    **unsupported: Any,
) -> list[torch.Tensor]:
    """Matrix product x[group] @ weight of each group.

    Differentiable. Not supported: bias, quantisation, activations, a list with a result per group.
    Source: op-plugin docs; callers modeling_qwen3_moe.py after verl_npu 2.3.0 and MindSpeed
    te/pytorch/module/grouped_linear.py:84@e4772499.

    Args:
        x: One (M, K).
        weight: For group_type 0 one (E, K, N) or E of (K, N); for 2 one (K, N).
        group_list: Ends (group_list_type 0) or sizes (1) of the groups.
        split_item: 2 or 3 for a list with one tensor, in which rows after the last group are zero (the NPU leaves them
            as they are).
        group_type: 0 if the rows of x are divided; 2 if the inner dimension is, for a result of (E, M, N).
    """
    name = "npu_grouped_matmul"
    refuse(name, act_type=act_type or None, **unsupported)
    if group_type not in (_ROWS, _INNER):
        raise UnsupportedArgument(f"torch_npu.{name}", "group_type", group_type)
    if split_item not in (2, 3):
        raise UnsupportedArgument(f"torch_npu.{name}", "split_item", split_item)
    if len(x) != 1:
        raise UnsupportedArgument(f"torch_npu.{name}", "x", list(x), f"{len(x)} tensors with this group_type")
    kind = group_list_type or 0
    if group_type == _INNER:
        (y,) = weight
        return [torch.stack(matmul_by_inner(x[0], y, group_ends(name, group_list, kind, x[0].shape[1])))]
    rows, weights = x[0].shape[0], list(weight[0] if weight[0].dim() == 3 else weight)
    ends = group_ends(name, group_list, kind, rows)
    if len(ends) != len(weights):
        raise ValueError(f"torch_npu.{name}: {len(ends)} groups and {len(weights)} weights")
    whole = torch.cat(matmul_by_rows(x[0], weights, ends))
    return [torch.cat((whole, whole.new_zeros(rows - whole.shape[0], whole.shape[1])))]
