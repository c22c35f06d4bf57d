"""Compare MindSpeed-LLM's auxiliary loss with that of DeepSeek-V3's report, by the gradients that each gives.

In the report's balance loss (arXiv:2412.19437, equations 17 to 20) f_i counts the tokens for which an expert's score is
among the K highest, and P_i is the mean of the normalized scores; the bias is in neither. MindSpeed-LLM v2.0.0 counts
the experts that bias and groups chose, and adds the bias to the scores (apply_seq_aux_loss,
mindspeed_llm/core/transformer/moe/router.py:404). The router is Megatron-core's with MindSpeed-LLM's routing and
DeepSeek-V3's options; its logits are those of random tokens, and what is compared is their gradient.
"""

from __future__ import annotations

from typing import Any

import torch
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
    show,
    use_mindspeed_llm_router,
)

STAND_INS = ("npu",)

BIASES = {"spread 0": (0.0, 0.0), "spread 0.02": (0.0, 0.02), "spread 0.02 around 4": (4.0, 0.02)}


def main() -> dict[str, Any]:
    torch.cuda.current_device = lambda: torch.device("cpu")
    parallel_state.initialize_model_parallel()
    use_mindspeed_llm_router(seq_aux=True, num_experts=EXPERTS, moe_router_topk=TOP)
    router = TopKRouter(TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, num_moe_experts=EXPERTS, moe_router_topk=TOP,
        moe_router_load_balancing_type="noaux_tc", moe_aux_loss_coeff=COEFFICIENT, use_cpu_initialization=True,
        add_bias_linear=False,
    ))  # fmt: skip
    found = compare_auxiliary_losses(router, list(BIASES.values()), TOKENS, EXPERTS)
    return {
        "fault": any(cosine < 0.999 or not 0.999 < size < 1.001 for cosine, size in found),
        "the gradient and the report's": {
            name: {"cosine": round(cosine, 4), "size": round(size, 4)}
            for name, (cosine, size) in zip(BIASES, found, strict=True)
        },
    }


if __name__ == "__main__":
    with only_rank():
        show(main)
