"""Adaptation attention-scale: Megatron-core's softmax scale in MindSpeed's flash attention.

Megatron-core's MLA passes mscale^2 / sqrt(qk_head_dim + qk_pos_emb_head_dim), where YaRN scales positions
(megatron/core/transformer/multi_latent_attention.py:84@core_v0.12.1; Peng et al. 2023, arXiv:2309.00071). MindSpeed's
flash attention takes 1 / sqrt(kv_channels) instead (mindspeed/core/transformer/flash_attention/flash_attention/
adaptor.py:47@7ff818c4). Found by the rehearsal of vLLM's engine: rollout and actor differed tenfold more than their
rounding explains.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "attention-scale"


def softmax_scale(attention: Any, upstream: float) -> float:
    """Return the factor that attention scores are multiplied by.

    attention: Megatron-core's DotProductAttention. upstream: MindSpeed's factor.
    """
    if not enabled(SLUG):
        return upstream
    count(SLUG)
    scale: float = attention.softmax_scale
    return scale
