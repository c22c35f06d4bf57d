"""MindSpeed's own ops, which it compiles for the NPU at run time, in plain torch.

`MindSpeedOpBuilder.load` and `AtbOpBuilder.load` (mindspeed/op_builder@7ff818c and dc83a03) compile C++ against CANN
and return a module with functions; here they return those of this module. Any other name raises when it is looked up.
Shapes are those of mindspeed/ops/csrc@7ff818c.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from npu_rl_standins.unsupported import NoCpuVersion, UnsupportedArgument
from npu_rl_standins.used import count
from torch_npu.ops import moe_tokens, optimizer, rotary
from torch_npu.ops.matmul import group_ends, matmul_by_inner, matmul_by_rows
from torch_npu.registry import wide

MODULES = ("mindspeed.op_builder.builder", "mindspeed.op_builder.atb_builder")
"""The modules in which MindSpeed defines how an op is compiled and loaded."""

OPS: dict[str, Callable[..., Any]] = {}

Tensors = Sequence[torch.Tensor]


def install_in(builders: Any) -> None:
    """Replace the compiler in one of MODULES: every `load` that a class in it defines."""
    for value in vars(builders).values():
        if isinstance(value, type) and "load" in vars(value):
            value.load = _load  # type: ignore[attr-defined]


def _load(*_: Any, **__: Any) -> Operators:
    return Operators()


class Operators:
    """The module that `load` returns."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in OPS:
            raise NoCpuVersion(f"mindspeed.{name}")
        return OPS[name]


def _op(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        count(f"mindspeed.{function.__name__}")
        return function(*arguments, **named)

    OPS[function.__name__] = counted
    return counted


@_op
def npu_gmm(
    x: Tensors,
    weight: Tensors,
    bias: Tensors,
    group_list: Any,
    group_type: int | None,
    group_list_type: int | None,
) -> list[torch.Tensor]:
    """Return one matrix product for each group of rows.

    Args:
        x: (T, K) for group_type 0, (K, T) for 2.
        weight: (E, K, N) for group_type 0, (T, N) for 2.
        bias: Not supported.
        group_list: Ends (group_list_type 0) or sizes (1) of the groups, as a list or an int64 tensor. Every row has to
            be in a group.
        group_type: 0 for a result of (T, N), 2 for (E, K, N).
        group_list_type: 0 for ends, 1 for sizes.
    """
    if bias:
        raise UnsupportedArgument("mindspeed.npu_gmm", "bias", bias)
    return _grouped_matmul(x, weight, group_list, group_type, group_list_type)


def _grouped_matmul(
    x: Tensors, weight: Tensors, group_list: Any, group_type: int | None, group_list_type: int | None
) -> list[torch.Tensor]:
    kind = -1 if group_type is None else group_type
    if kind not in (0, 2):
        raise UnsupportedArgument("mindspeed.npu_gmm", "group_type", group_type)
    length = x[0].shape[0 if kind == 0 else 1]
    ends = group_ends("mindspeed.npu_gmm", group_list, group_list_type or 0, length)
    if (ends[-1] if ends else 0) != length:
        raise ValueError(f"mindspeed.npu_gmm: the groups end at {ends[-1:]}, there are {length} rows")
    if kind == 2:
        return [torch.stack(matmul_by_inner(x[0], weight[0], ends))]
    if len(ends) != weight[0].shape[0]:
        raise ValueError(f"mindspeed.npu_gmm: {len(ends)} groups and {weight[0].shape[0]} weights")
    return [torch.cat(matmul_by_rows(x[0], list(weight[0]), ends))]


@_op
def npu_gmm_backward(
    grad: Tensors, x: Tensors, weight: Tensors, group_list: Any, group_list_type: int | None
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of x and weight for the gradient `grad` (T, N) of npu_gmm's result; [] for the bias."""
    dx = _grouped_matmul(grad, [weight[0].transpose(-1, -2)], group_list, 0, group_list_type)
    dw = _grouped_matmul([x[0].t()], grad, group_list, 2, group_list_type)
    return dx, [dw[0].reshape(weight[0].shape)], []


@_op
def npu_gmm_backward_fusion(
    grad: Tensors, weight: Tensors, group_list: Any, group_list_type: int | None
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradient of npu_gmm's x alone; npu_groupmatmul_add_fp32 computes that of the weights."""
    return _grouped_matmul(grad, [weight[0].transpose(-1, -2)], group_list, 0, group_list_type), [], []


@_op
def npu_groupmatmul_add_fp32(x: torch.Tensor, dy: torch.Tensor, grouplist: Any, grad: torch.Tensor) -> None:
    """Add x^T @ dy of each group, (E, K, N), to the float32 `grad` with as many entries, **in place**."""
    ends = group_ends("mindspeed.npu_groupmatmul_add_fp32", grouplist, 0, x.shape[0])
    grad += torch.stack(matmul_by_inner(wide(x).t(), wide(dy), ends)).view(grad.shape)


@_op
def npu_matmul_add_fp32(grad_output: torch.Tensor, total_input: torch.Tensor, grad: torch.Tensor) -> None:
    """Add grad_output^T @ total_input to the float32 `grad`, **in place**."""
    grad += wide(grad_output).t() @ wide(total_input)


# The same ops as torch_npu's of these names, counted as MindSpeed's.
_op(inspect.unwrap(moe_tokens.npu_moe_token_permute))
_op(inspect.unwrap(moe_tokens.npu_moe_token_unpermute))
_op(inspect.unwrap(rotary.npu_rotary_position_embedding))


@_op
def npu_apply_fused_adamw_v2(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor,  # noqa: ARG001  amsgrad's
    state_step: Any,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
) -> None:
    """Apply one AdamW step **in place**; state_step counts from 1.

    Source: mindspeed/ops/npu_apply_fused_adamw_v2.py@7ff818c. Not supported: amsgrad.
    """
    if amsgrad:
        raise UnsupportedArgument("mindspeed.npu_apply_fused_adamw_v2", "amsgrad", amsgrad)
    before = int(state_step) - 1
    inspect.unwrap(optimizer.npu_apply_adam_w)(
        beta1**before,
        beta2**before,
        lr,
        weight_decay,
        beta1,
        beta2,
        eps,
        grad,
        None,
        False,
        maximize,
        out=(param, exp_avg, exp_avg_sq),
    )
