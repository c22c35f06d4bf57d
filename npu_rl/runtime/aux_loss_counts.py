"""Adaptation aux-loss-counts: the sequence-wise auxiliary loss counts experts by the router's own scores.

DeepSeek-V3's balance loss (arXiv:2412.19437, equations 17 to 20) is alpha times the sum of f_i P_i over the experts.
P_i is the mean of the normalized scores s_i, and f_i counts the tokens for which s_i is among the K highest of all s.
The bias and the limit to groups, which decide a token's experts, have no part in f_i.

- Megatron-core 0.12.1 counts the chosen experts (megatron/core/transformer/moe/router.py:265). Megatron-LM counts the
  highest scores since cfe7b066c0 (core 0.14).
- MindSpeed-LLM counts the chosen experts too, and adds the bias to the scores of P_i
  (mindspeed_llm/core/transformer/moe/router.py:404@v2.0.0; its master of the end of 2025 does the same).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .switches import enabled
from .used import count

if TYPE_CHECKING:
    from torch import Tensor

SLUG = "aux-loss-counts"


def by_scores(scores: Tensor, routing_map: Tensor, topk: int) -> Tensor:
    """Return the mask [tokens, experts] of each token's highest scores, or `routing_map` while the switch is off."""
    if not enabled(SLUG):
        return routing_map
    count(SLUG)
    import torch

    return torch.zeros_like(routing_map).scatter(1, scores.detach().topk(topk, dim=1).indices, True)


def experts(scores: Tensor, chosen: Tensor) -> Tensor:
    """Return the experts [tokens, K] with each token's highest scores, or those `chosen` while the switch is off."""
    if not enabled(SLUG):
        return chosen
    count(SLUG)
    return scores.detach().topk(chosen.shape[1], dim=1).indices


def adds_bias() -> bool:
    """Return whether MindSpeed-LLM adds the router's bias to the scores of the loss, as upstream does."""
    return not enabled(SLUG)
