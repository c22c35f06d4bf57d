"""Show whether the router counts its experts' tokens exactly over the micro batches of a step.

The counter is registered as float32 (megatron/core/transformer/moe/router.py:119@core_v0.12.1; MindSpeed-LLM v2.0.0,
core/transformer/moe/router.py:373), Float16Module makes it bfloat16, and nothing makes it float32 again. Above 256
bfloat16 doesn't hold every whole number, and a small count added to a large one is rounded. The update of the
bias compares each count with the mean.

Real: verl's get_model with Float16Module, and the tree's router with its routing.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from witness_common import model_with_router, only_rank, show, use_mindspeed_llm_router

STAND_INS = ("npu",)

EXPERTS, TOKENS, MICRO_BATCHES = 8, 320, 256


def main() -> dict[str, Any]:
    torch.cuda.current_device = lambda: torch.device("cpu")
    parallel_state.initialize_model_parallel()
    extra = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    if importlib.util.find_spec("mindspeed_llm") is not None:
        extra = {}
        use_mindspeed_llm_router(
            n_group=None, expert_model_parallel_size=1, topk_group=None, routed_scaling_factor=None
        )
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16,
        num_moe_experts=EXPERTS, moe_router_topk=2, moe_router_load_balancing_type="none",
        use_cpu_initialization=True, add_bias_linear=False, **extra,
    )  # fmt: skip
    _, router = model_with_router(config)
    exact, numbers = torch.zeros(EXPERTS, dtype=torch.long), torch.Generator().manual_seed(0)
    for _ in range(MICRO_BATCHES):
        logits = torch.randn(TOKENS, EXPERTS, generator=numbers)
        exact += torch.bincount(logits.topk(2).indices.flatten(), minlength=EXPERTS)
        router.routing(logits)
    counted = router.local_tokens_per_expert
    wrong = ((exact.float().mean() - exact).sign() != (counted.float().mean() - counted.float()).sign()).sum()
    return {
        "fault": counted.long().tolist() != exact.tolist(),
        "type": str(counted.dtype),
        "tokens": exact.tolist(),
        "counted": counted.long().tolist(),
        "biases that step the wrong way": int(wrong),
    }


if __name__ == "__main__":
    with only_rank():
        show(main)
