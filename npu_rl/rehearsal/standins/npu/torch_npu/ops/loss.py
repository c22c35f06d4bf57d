"""Cross-entropy."""

from __future__ import annotations

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide


@op
def npu_cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cross-entropy of logits (N, C) and targets (N,) in [0, C), int64.

    A negative ignore_index ignores nothing, unlike torch's. Only the loss has a gradient, in `input`; as on the NPU,
    label_smoothing has none, and neither have weight and ignore_index with "mean". Not supported: z-loss.
    Source: op-plugin docs and test_npu_cross_entropy_loss.py; caller verl/utils/torch_functional.py@55e3c5b.

    Returns:
        The loss, (N,) for reduction "none" and else (1,); the log-probabilities (N, C); two empty tensors.
    """
    name = "npu_cross_entropy_loss"
    refuse(name, lse_square_scale_for_zloss=lse_square_scale_for_zloss or None, return_zloss=return_zloss)
    if reduction not in ("mean", "sum", "none"):
        raise UnsupportedArgument(f"torch_npu.{name}", "reduction", reduction)
    if input.requires_grad and torch.is_grad_enabled():
        _refuse_without_gradient(name, weight, reduction, ignore_index, label_smoothing)
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= input.shape[1]):
        raise IndexError(f"torch_npu.{name}: targets must lie in [0, {input.shape[1]})")

    log_prob = wide(input).log_softmax(-1)
    weights = torch.ones(input.shape[1]) if weight is None else wide(weight)
    counted = (target != ignore_index) if ignore_index >= 0 else torch.ones_like(target, dtype=torch.bool)
    chosen = weights[target] * counted
    of_target = -log_prob.gather(1, target.unsqueeze(1)).squeeze(1) * chosen
    of_all = -(log_prob * weights).sum(-1) * counted
    loss = (1 - label_smoothing) * of_target + label_smoothing / input.shape[1] * of_all
    if reduction == "mean":
        loss = (loss.sum() / chosen.sum()).reshape(1)
    elif reduction == "sum":
        loss = loss.sum().reshape(1)
    nothing = input.new_empty(0)
    return loss.to(input.dtype), log_prob.detach().to(input.dtype), nothing, nothing


def _refuse_without_gradient(
    name: str, weight: torch.Tensor | None, reduction: str, ignore_index: int, label_smoothing: float
) -> None:
    why = "the NPU has no gradient for it"
    if label_smoothing:
        raise UnsupportedArgument(f"torch_npu.{name}", "label_smoothing", label_smoothing, why)
    if reduction == "mean" and weight is not None:
        raise UnsupportedArgument(f"torch_npu.{name}", "weight", weight, why)
    if reduction == "mean" and ignore_index >= 0:
        raise UnsupportedArgument(f"torch_npu.{name}", "ignore_index", ignore_index, why)
