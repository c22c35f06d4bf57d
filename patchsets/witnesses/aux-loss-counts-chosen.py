"""Compare the auxiliary loss of the router with that of DeepSeek-V3's report, by the gradients that each gives.

The report's balance loss (arXiv:2412.19437, equations 17 to 20) counts, in f_i, the tokens for which an expert's score
is among the K highest. Megatron-core 0.12.1 counts the experts that bias and groups chose
(megatron/core/transformer/moe/router.py:265@a845aa7), since cfe7b066c0 the K highest. The router is the tree's
TopKRouter with DeepSeek-V3's options, verl's coefficient and the logits of random tokens; what is compared is the
gradient of the logits.
"""

from __future__ import annotations

from typing import Any

import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where the NPU stacks put it
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter
from witness_common import (
    COEFFICIENT,
    EXPERTS,
    TOKENS,
    TOP,
    compare_auxiliary_losses,
    only_rank,
    router_groups,
    show,
)

STAND_INS = ("npu",)

SPREADS = (0.0, 0.02, 0.1)


def main() -> dict[str, Any]:
    parallel_state.initialize_model_parallel()
    router = TopKRouter(TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, num_moe_experts=EXPERTS, moe_router_topk=TOP,
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=COEFFICIENT,
        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_pre_softmax=True,
        moe_router_num_groups=8, moe_router_group_topk=4, moe_router_topk_scaling_factor=2.5,
        use_cpu_initialization=True, add_bias_linear=False,
    ), **router_groups())  # fmt: skip
    found = compare_auxiliary_losses(router, [(0.0, spread) for spread in SPREADS], TOKENS, 1, EXPERTS)
    cosines = {spread: round(cosine, 4) for spread, (cosine, _) in zip(SPREADS, found, strict=True)}
    return {
        "fault": min(cosines.values()) < 0.999,
        "cosine with the report's gradient, by spread of the bias": cosines,
    }


if __name__ == "__main__":
    with only_rank():
        show(main)
