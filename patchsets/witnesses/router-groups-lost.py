"""Route random tokens by the configuration that mbridge makes of DeepSeek-V3's config.json.

The router is Megatron-core's TopKRouter, with 256 experts in 8 groups of which 4 are chosen, 8 experts per token and
a bias per expert, as config.json has it; its configuration is that of mbridge's DeepseekV3Bridge. The reference is
the rule of the report (arXiv:2412.19437, 2.1.2), computed here by sorting: the groups by the sum of their two best,
then the best experts within.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where the NPU stacks put it
from megatron.core import parallel_state
from megatron.core.transformer import MLATransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from transformers import DeepseekV3Config
from witness_common import only_rank, show

STAND_INS = ("npu",)

EXPERTS, GROUPS, CHOSEN_GROUPS, TOP, TOKENS = 256, 8, 4, 8, 2048
WITHIN = EXPERTS // GROUPS


def configuration() -> Any:
    """Return mbridge's configuration for Megatron-core.

    mbridge passes an argument that Megatron-core 0.16 lacks, max_position_embeddings; MindSpeed makes it one. Its own
    registration (mindspeed/features_manager/megatron_basic/megatron_basic.py:57@e4772499) imports Triton first.
    """
    from mbridge.models.deepseek_v3 import DeepseekV3Bridge
    from mindspeed.core.megatron_basic.arguments_basic import transformer_config_init_wrapper

    MLATransformerConfig.__init__ = transformer_config_init_wrapper(MLATransformerConfig.__init__)
    hf_config = DeepseekV3Config(
        num_hidden_layers=2, first_k_dense_replace=1, hidden_size=64, num_nextn_predict_layers=0,
        n_routed_experts=EXPERTS, n_group=GROUPS, topk_group=CHOSEN_GROUPS, num_experts_per_tok=TOP,
    )  # fmt: skip
    bridge = DeepseekV3Bridge(hf_config, torch.bfloat16)
    bridge.set_extra_args(use_cpu_initialization=True)
    return bridge.config


def by_the_report(scores: torch.Tensor) -> list[set[int]]:
    """Return the experts of each token; scores: [tokens, experts], with the bias."""
    experts = []
    for token in scores.tolist():
        groups = [sorted(token[first : first + WITHIN])[-2:] for first in range(0, EXPERTS, WITHIN)]
        best = sorted(range(GROUPS), key=lambda group: sum(groups[group]))[-CHOSEN_GROUPS:]
        allowed = [expert for expert in range(EXPERTS) if expert // WITHIN in best]
        experts.append(set(sorted(allowed, key=lambda expert: token[expert])[-TOP:]))
    return experts


def main() -> dict[str, Any]:
    parallel_state.initialize_model_parallel()
    config = configuration()
    router = TopKRouter(config, moe_utils.get_default_pg_collection())
    numbers = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, EXPERTS, generator=numbers)
    router.expert_bias = 0.02 * torch.randn(EXPERTS, generator=numbers)
    with torch.no_grad():
        _, routing_map = router.routing(logits.view(TOKENS, 1, EXPERTS))
    found = [set(row.nonzero().flatten().tolist()) for row in routing_map]
    right = by_the_report(torch.sigmoid(logits) + router.expert_bias)
    others = sum(one != other for one, other in zip(found, right, strict=True))
    wrong = sum(len(one - other) for one, other in zip(found, right, strict=True))
    return {
        "fault": others > 0,
        "groups": [config.moe_router_num_groups, config.moe_router_group_topk],
        "tokens with other experts": others,
        "of": TOKENS,
        "experts that the report does not choose": round(wrong / (TOKENS * TOP), 4),
    }


if __name__ == "__main__":
    with only_rank():
        show(main)
