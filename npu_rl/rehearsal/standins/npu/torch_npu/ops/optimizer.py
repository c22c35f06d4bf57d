"""One step of AdamW."""

from __future__ import annotations

from typing import Any

import torch

from ..missing import refuse
from ..registry import op, wide


@op
def npu_apply_adam_w(
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    weight_decay: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One AdamW step on out = (parameter, first moment, second moment), **in place**, which are also returned.

    Not supported: amsgrad. Source: op-plugin test_npu_apply_adam_w.py; caller mindspeed/optimizer/adamw.py@dc83a03.

    Args:
        beta1_power: beta1 ** (step - 1); scalars are numbers or tensors with one entry.
        beta2_power: beta2 ** (step - 1).
    """
    refuse("npu_apply_adam_w", amsgrad=amsgrad, max_grad_norm=max_grad_norm)
    parameter, first, second = out
    gradient = -wide(grad) if maximize else wide(grad)
    with torch.no_grad():
        new_first = wide(first) * beta1 + gradient * (1 - beta1)
        new_second = wide(second) * beta2 + gradient.square() * (1 - beta2)
        step = new_first / (1 - beta1_power * beta1)
        size = (new_second / (1 - beta2_power * beta2)).sqrt() + epsilon
        parameter.copy_(wide(parameter) * (1 - lr * weight_decay) - lr * step / size)
        first.copy_(new_first)
        second.copy_(new_second)
    return out
