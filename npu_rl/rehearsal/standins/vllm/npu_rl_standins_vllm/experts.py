"""The mixture of experts on vLLM's CPU platform, where 0.9.1 uses Intel's extension for PyTorch.

vllm/model_executor/layers/fused_moe/layer.py@0.9.1 copies the weights into the extension's own layout after loading,
has no expert map there, and refuses processors other than x86. Here the layer's parameters are read at every call, so
that weights may be loaded in place, offloaded and bound again between calls; with expert parallelism only this rank's
experts are computed. Routing is vLLM's own `select_experts`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from npu_rl_standins.unsupported import UnsupportedArgument
from npu_rl_standins.used import count


def install_in(layer_module: ModuleType) -> None:
    """Give UnquantizedFusedMoEMethod a forward for the CPU, and nothing to do after loading."""
    select_experts = layer_module.FusedMoE.select_experts  # type: ignore[attr-defined]

    def forward(
        method: Any,
        layer: Any,
        x: torch.Tensor,
        use_grouped_topk: bool,
        top_k: int,
        router_logits: torch.Tensor,
        renormalize: bool,
        topk_group: int | None = None,
        num_expert_group: int | None = None,
        global_num_experts: int = -1,  # noqa: ARG001  the expert map has it
        expert_map: torch.Tensor | None = None,
        custom_routing_function: Any = None,
        scoring_func: str = "softmax",
        e_score_correction_bias: torch.Tensor | None = None,
        apply_router_weight_on_input: bool = False,
        activation: str = "silu",
    ) -> torch.Tensor:
        if activation != "silu":
            raise UnsupportedArgument("the experts' forward", "activation", activation)
        if apply_router_weight_on_input:
            raise UnsupportedArgument("the experts' forward", "apply_router_weight_on_input", True)
        weights, chosen = select_experts(
            hidden_states=x,
            router_logits=router_logits,
            use_grouped_topk=use_grouped_topk,
            top_k=top_k,
            renormalize=renormalize,
            topk_group=topk_group,
            num_expert_group=num_expert_group,
            custom_routing_function=custom_routing_function,
            scoring_func=scoring_func,
            e_score_correction_bias=e_score_correction_bias,
            indices_type=method.topk_indices_dtype,
        )
        return expert_mixture(x, layer.w13_weight, layer.w2_weight, weights, chosen, expert_map)

    method = layer_module.UnquantizedFusedMoEMethod  # type: ignore[attr-defined]
    method.forward_cpu = forward
    method.forward_native = forward  # vLLM calls it if its custom ops are disabled
    method.process_weights_after_loading = lambda *_: None
    # vLLM's layer is among those whose KV cache verl_patches of cann-recipes-train free; vllm-ascend's is not
    # (workers/vllm_rollout/vllm_rollout_spmd.py:228@bcd3be7).
    layer_module.FusedMoE.attn_type = None  # type: ignore[attr-defined]


def expert_mixture(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    expert_map: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the weighted sum over each token's experts that this rank has, in x's shape and type; summed in float32.

    Args:
        x: (tokens, hidden).
        w13: (local experts, 2 * intermediate, hidden), gate first.
        w2: (local experts, hidden, intermediate).
        weights: (tokens, top k), of all experts.
        chosen: (tokens, top k), of all experts.
        expert_map: (all experts), an expert's index in w13 and w2, or -1 if another rank has it.
    """
    count("vllm.experts")
    local = chosen.long() if expert_map is None else expert_map[chosen.long()].long()
    total = torch.zeros(x.shape, dtype=torch.float32)
    for expert in local[local >= 0].unique().tolist():
        rows, choices = (local == expert).nonzero(as_tuple=True)
        gate, up = F.linear(x[rows], w13[expert]).chunk(2, dim=-1)
        out = F.linear(F.silu(gate) * up, w2[expert])
        total.index_add_(0, rows, out.float() * weights[rows, choices, None].float())
    return total.to(x.dtype)
