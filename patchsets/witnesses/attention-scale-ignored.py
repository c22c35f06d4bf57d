"""MindSpeed's flash attention ignores the softmax scale that Megatron-core passes.

The attention is Megatron-core's own DotProductAttention, patched by MindSpeed, as its MLA makes it for DeepSeek-V3's
YaRN: (0.1 ln 40 + 1)^2 / sqrt(192), against 1 / sqrt(kv_channels)
(mindspeed/core/transformer/flash_attention/flash_attention/adaptor.py@7ff818c). "off" is the largest difference to
plain attention at the scale asked for, "off from the other" at the other one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from mindspeed import megatron_adaptor
from witness_common import only_rank, show

STAND_INS = ("npu",)

ASKED_FOR = (0.1 * math.log(40) + 1) ** 2 / math.sqrt(192)
KV_CHANNELS = 64


def main() -> dict[str, Any]:
    megatron_adaptor.repatch({"use_flash_attn": True, "seq_length": 2048})
    from megatron.core import parallel_state
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=1, hidden_size=256, num_attention_heads=4, kv_channels=KV_CHANNELS, attention_dropout=0.0
    )
    made: Any = DotProductAttention(
        config, 1, AttnMaskType.causal, "self", attention_dropout=0.0, softmax_scale=ASKED_FOR
    )
    torch.manual_seed(0)
    query, key, value = (torch.randn(8, 2, 4, KV_CHANNELS) for _ in range(3))
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    got = made(query, key, value, mask, attn_mask_type=AttnMaskType.causal)
    asked, other = (difference(got, query, key, value, s) for s in (ASKED_FOR, 1 / math.sqrt(KV_CHANNELS)))
    return {"fault": asked > 1e-4, "off": asked, "off from the other": other}


def difference(got: Any, query: Any, key: Any, value: Any, scale: float) -> float:
    scores = torch.einsum("sbhd,tbhd->bhst", query, key) * scale
    scores = scores.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -math.inf)
    want = torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1), value).reshape(got.shape)
    return float((want - got).abs().max())


if __name__ == "__main__":
    with only_rank():
        show(main)
