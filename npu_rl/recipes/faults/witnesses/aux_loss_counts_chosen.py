"""Compare the auxiliary loss of the router with that of DeepSeek-V3's report, by the gradients that each gives.

The report's balance loss (arXiv:2412.19437, equations 17 to 20) counts, in f_i, the tokens for which an expert's score
is among the K highest. Megatron-core 0.12.1 counts the experts that bias and groups chose
(megatron/core/transformer/moe/router.py:265@a845aa7), since cfe7b066c0 the K highest. The router is the tree's
TopKRouter with DeepSeek-V3's options, verl's coefficient and the logits of random tokens; what is compared is the
gradient of the logits.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where the NPU stacks put it
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter

EXPERTS, TOP, TOKENS, COEFFICIENT = 256, 8, 2048, 0.001


def expected(logits: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the report's loss."""
    logits = logits.clone().requires_grad_()
    affinity = torch.sigmoid(logits)
    highest = torch.zeros_like(affinity).scatter(1, affinity.topk(TOP, dim=1).indices, 1.0)
    f = highest.sum(0) * EXPERTS / (TOP * TOKENS)
    p = (affinity / affinity.sum(-1, keepdim=True)).mean(0)
    (COEFFICIENT * (f * p).sum()).backward()
    return logits.grad


def found(router: Any, logits: torch.Tensor) -> torch.Tensor:
    """Return the gradient that the router's own loss adds."""
    logits = logits.clone().requires_grad_()
    scores, _ = router.routing(logits.view(TOKENS, 1, EXPERTS))
    (scores * 0).sum().backward()
    return logits.grad


def main() -> dict[str, Any]:
    parallel_state.initialize_model_parallel()
    later = [
        name
        for name in ("get_default_model_comm_pgs", "get_default_pg_collection")
        if hasattr(moe_utils, name)
    ]
    router = TopKRouter(TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, num_moe_experts=EXPERTS, moe_router_topk=TOP,
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=COEFFICIENT,
        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_pre_softmax=True,
        moe_router_num_groups=8, moe_router_group_topk=4, moe_router_topk_scaling_factor=2.5,
        use_cpu_initialization=True, add_bias_linear=False,
    ), *(getattr(moe_utils, name)() for name in later))  # fmt: skip
    numbers = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, EXPERTS, generator=numbers)
    biases = torch.randn(EXPERTS, generator=numbers)
    right, cosines = expected(logits), {}
    for spread in (0.0, 0.02, 0.1):
        router.expert_bias = biases * spread
        gradient = found(router, logits)
        cosines[spread] = round(torch.cosine_similarity(gradient.flatten(), right.flatten(), dim=0).item(), 4)
    return {
        "fault": min(cosines.values()) < 0.999,
        "cosine with the report's gradient, by spread of the bias": cosines,
    }


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
    dist.destroy_process_group()
