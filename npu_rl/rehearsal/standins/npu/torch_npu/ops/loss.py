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

    Only the loss has a gradient, in `input`. A negative ignore_index ignores nothing, unlike torch's. Not supported:
    weight, label_smoothing, a class that is ignored, z-loss, and a reduction other than "none", the one that verl asks
    for. Source: op-plugin docs and test_npu_cross_entropy_loss.py; caller verl/utils/torch_functional.py@55e3c5b.

    Returns:
        The loss (N,), the log-probabilities (N, C), and two empty tensors.
    """
    name = "npu_cross_entropy_loss"
    refuse(name, weight=weight, label_smoothing=label_smoothing or None, return_zloss=return_zloss)
    refuse(name, lse_square_scale_for_zloss=lse_square_scale_for_zloss or None)
    if reduction != "none":
        raise UnsupportedArgument(f"torch_npu.{name}", "reduction", reduction)
    if ignore_index >= 0:
        raise UnsupportedArgument(f"torch_npu.{name}", "ignore_index", ignore_index)
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= input.shape[1]):
        raise IndexError(f"torch_npu.{name}: targets must lie in [0, {input.shape[1]})")
    log_prob = wide(input).log_softmax(-1)
    loss = -log_prob.gather(1, target.unsqueeze(1)).squeeze(1)
    nothing = input.new_empty(0)
    return loss.to(input.dtype), log_prob.detach().to(input.dtype), nothing, nothing
