"""The mixture of experts of vLLM's CPU platform, which 0.9.1 leaves to Intel's extension for PyTorch.

vllm/model_executor/layers/fused_moe/layer.py@0.9.1 copies the weights into the extension's own layout after loading,
knows no expert map there, and refuses other processors than x86. Here the layer's parameters are read again at every
call, so that weights may be loaded in place, offloaded and bound again between calls; with expert parallelism only
the experts of this rank are computed. Routing is vLLM's own `select_experts`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from npu_rl_standins.unsupported import UnsupportedArgument
from npu_rl_standins.used import count


def put_in_place(layer_module: ModuleType) -> None:
    """Give UnquantizedFusedMoEMethod a forward for the CPU, and nothing to prepare after loading."""
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
        global_num_experts: int = -1,  # noqa: ARG001  the expert map says it
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
        return mixture(x, layer.w13_weight, layer.w2_weight, weights, chosen, expert_map)

    method = layer_module.UnquantizedFusedMoEMethod  # type: ignore[attr-defined]
    method.forward_cpu = forward
    method.forward_native = forward  # what vLLM calls where its own operators are switched off
    method.process_weights_after_loading = lambda *_: None


def mixture(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    expert_map: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum over each token's experts, as far as they are this rank's; it has x's shape and type.

    x: (tokens, hidden). w13: (experts here, 2 * intermediate, hidden), gate first. w2: (experts here, hidden,
    intermediate). weights, chosen: (tokens, top k), of all experts. expert_map: (all experts), an expert's place in
    w13 and w2, or -1 if another rank has it. The sum is in float32.
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
