"""Show whether the router's bias stays float32 in the actor, and whether the rollout can distinguish its entries.

DeepSeek-V3's bias decides between scores that are close together, and training moves it by 0.001 a step. MindSpeed-LLM
v2.0.0 registers it as float32 (core/transformer/moe/router.py:378) and Megatron-core's Float16Module makes it bfloat16,
whose steps near 4 are 1/64; the rollout's is bfloat16, too (vllm_ascend/models/deepseek_v2.py:328@f20869e).

Real, of cann-recipes-train's tree: verl's get_model with Float16Module, MindSpeed-LLM's router with its routing and
its update of the bias, loading and saving by state_dict as verl's legacy checkpoints do it, and the recipe's sharding
manager with its generator and converter. The model is one router; the rollout is its bfloat16 parameter.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from witness_common import (
    model_with_router,
    only_rank,
    send_weights,
    show,
    use_mindspeed_llm_router,
)

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1", "VLLM_PLUGINS": "none"}

EXPERTS, RATE, OFFSET = 256, 0.001, 4.0
PLACE, SENT = "decoder.layers.0.mlp.router.expert_bias", "model.layers.0.mlp.gate.e_score_correction_bias"


class Rollout:
    """Stand-in for vLLM's model with a router's bias; `copy_` acts as its default_weight_loader."""

    model = SimpleNamespace(layers=[SimpleNamespace(self_attn=None)])

    def load_weights(self, weights: Any) -> set[str]:
        loaded = dict(weights)
        self.bias = torch.zeros(EXPERTS, dtype=torch.bfloat16).copy_(loaded[SENT])
        return set(loaded)


def chosen(bias: torch.Tensor) -> torch.Tensor:
    """Return the experts of 2,048 tokens according to MindSpeed-LLM's routing with float32 scores."""
    logits = torch.randn(2048, EXPERTS, generator=torch.Generator().manual_seed(0))
    from mindspeed_llm.core.transformer.moe import moe_utils

    _, found, _ = moe_utils.topk_softmax_with_capacity(
        logits, 8, num_groups=8, group_topk=4, score_function="sigmoid", expert_bias=bias
    )
    return found.sort(-1).values


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return round(float((chosen(one) != chosen(other)).any(-1).float().mean()), 3)


def main() -> dict[str, Any]:
    router = use_mindspeed_llm_router(moe_router_bias_update_rate=RATE, moe_tp_extend_ep=True)
    import verl_patches.verl_adaptor  # noqa: F401  puts the recipe's functions into verl
    import verl_patches.workers.sharding_manager.megatron_vllm as managers
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe.router import TopKRouter
    from mindspeed_llm.core.distributed.finalize_model_grads import _update_router_expert_bias
    from verl_patches.models.mcore.weight_converter import McoreToHFWeightConverterDeepseekV3

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.reset_peak_memory_stats = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.max_memory_allocated = lambda *_: 0
    managers.print_memory = managers.patch_vllm_moe_model_weight_loader = lambda *_: None
    parallel_state.initialize_model_parallel()
    TopKRouter.forward = router.topk_router_forward
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16,
        num_moe_experts=EXPERTS, moe_router_topk=8, moe_router_load_balancing_type="none",
        use_cpu_initialization=True, add_bias_linear=False, finalize_model_grads_func=None,
    )  # fmt: skip
    config.num_layer_list, config.first_k_dense_replace = None, 1  # of the recipe's own class
    (actor, part), rollout = model_with_router(config), Rollout()
    bias = OFFSET + 0.1 * torch.rand(EXPERTS, generator=torch.Generator().manual_seed(0))
    actor[0].load_state_dict({**actor[0].state_dict(), PLACE: bias})
    found = {"loaded apart": apart(part.expert_bias, bias)}
    for _ in range(5):
        before = part.expert_bias.float().clone()
        scores, _ = part(torch.randn(512, 1, 8, generator=torch.Generator().manual_seed(1)).bfloat16())
        _update_router_expert_bias(actor, config)
    moved = (part.expert_bias.float() - before).abs()
    found |= {
        "moved by the rate": round(float((moved - RATE).abs().lt(RATE / 10).float().mean()), 3),
        "scores": str(scores.dtype),
        "saved": str(actor[0].state_dict_for_save_checkpoint()[PLACE].dtype),
        "counter": str(part.local_tokens_per_expert.dtype),
    }
    names = ("onload_model_weights", "free_cache_engine", "offload_model_weights")
    send_weights(
        managers.MegatronVLLMShardingManager, McoreToHFWeightConverterDeepseekV3, actor_module=actor,
        rollout=SimpleNamespace(**dict.fromkeys(names, int)), rollout_model=rollout, transformer_config=config,
    )  # fmt: skip
    found["rollout apart"] = apart(rollout.bias.float(), part.expert_bias.float())
    return {"fault": found["loaded apart"] > 0 or found["rollout apart"] > 0.05, **found}


if __name__ == "__main__":
    with only_rank():
        show(main)
