"""Choice of experts, and ordering of tokens for them, in inference."""

from __future__ import annotations

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide

Tensors3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@op
def npu_moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> Tensors3:
    """The k largest of softmax(x): their values, experts and rows.

    Source: op-plugin test_npu_moe_gating_top_k_softmax.py.

    Args:
        x: (T, E); only two dimensions are supported.
        finished: (T,) bool; finished rows get the expert number E.

    Returns:
        Values in x's type, experts as int32 and row numbers as int32, all (T, k). Row numbers count down the columns:
        choice j of token t is j * T + t.
    """
    if x.dim() != 2:
        raise UnsupportedArgument(
            "torch_npu.npu_moe_gating_top_k_softmax", "x", x, f"it has {x.dim()} dimensions"
        )
    values, experts = wide(x).softmax(-1).sort(descending=True, stable=True)
    experts = experts[:, :k].int()
    if finished is not None:
        experts = experts.masked_fill(finished.view(-1, 1), x.shape[-1])
    rows = torch.arange(x.shape[0] * k, dtype=torch.int32).view(k, -1).T.contiguous()
    return values[:, :k].to(x.dtype), experts, rows


@op
def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Tensors3:
    """DeepSeek's choice of k experts in the k_group best of group_count groups.

    Not supported: renorm=1.
    Source: op-plugin test_npu_moe_gating_topk.py; caller vllm_ascend/ops/fused_moe.py@v0.9.1rc2.

    Args:
        x: (T, E).
        bias: (E,), added to the scores for the choice, but not to the weights.
        group_select_mode: 0 ranks groups by their largest entry, 1 by the sum of their two largest.
        norm_type: 0 for softmax; 1 for sigmoid, whose chosen weights are divided by their sum + eps.
        out_flag: Whether to return all scores.

    Returns:
        Weights times routed_scaling_factor (T, k) in x's type, experts (T, k) as int32, and all scores (T, E) as
        float32, or an empty tensor without out_flag.
    """
    name = "npu_moe_gating_top_k"
    refuse(name, renorm=renorm or None)
    if norm_type not in (0, 1) or group_select_mode not in (0, 1):
        raise UnsupportedArgument(
            f"torch_npu.{name}", "norm_type, group_select_mode", (norm_type, group_select_mode), "each 0 or 1"
        )
    all_scores = wide(x).sigmoid() if norm_type == 1 else wide(x).softmax(-1)
    ranked = all_scores if bias is None else all_scores + wide(bias)
    if group_count > 1:
        grouped = ranked.unflatten(-1, (group_count, -1))
        of_group = grouped.topk(2)[0].sum(-1) if group_select_mode == 1 else grouped.amax(-1)
        best = of_group.sort(descending=True, stable=True)[1][:, :k_group]
        left_out = torch.ones_like(of_group, dtype=torch.bool).scatter(1, best, False)
        ranked = grouped.masked_fill(left_out.unsqueeze(-1), float("-inf")).flatten(1)
    experts = ranked.sort(descending=True, stable=True)[1][:, :k]
    weights = all_scores.gather(1, experts)
    if norm_type == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    shown = all_scores if out_flag else x.new_empty(0, dtype=torch.float32)
    return (weights * routed_scaling_factor).to(x.dtype), experts.int(), shown


@op
def npu_moe_init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> Tensors3:
    """The tokens x (T, H), each for each of its experts, ordered by expert.

    Source: op-plugin test_npu_moe_init_routing.py.

    Args:
        row_idx: (T, K) int32, rows from npu_moe_gating_top_k_softmax.
        expert_idx: (T, K) int32, experts from npu_moe_gating_top_k_softmax.

    Returns:
        The rows of the first min(active_num, T) * K choices; where each row went, int32 (T * K,) in row_idx's
        numbering; the sorted experts, int32 (T * K,).
    """
    count, choices = expert_idx.shape
    experts, order = expert_idx.flatten().sort(stable=True)
    sources = row_idx.flatten()[order].long()
    went_to = torch.empty_like(sources, dtype=torch.int32)
    went_to[sources] = torch.arange(sources.numel(), dtype=torch.int32)
    kept = min(active_num, count) * choices
    return x[sources[:kept] % count], went_to, experts.int()


@op
def npu_moe_compute_expert_tokens(
    sorted_expert_for_source_row: torch.Tensor, num_expert: int
) -> torch.Tensor:
    """Where each expert's tokens end in a sorted list of experts: int32 (num_expert,).

    Source: op-plugin test_npu_moe_compute_tokens.py.
    """
    experts = torch.arange(num_expert, dtype=sorted_expert_for_source_row.dtype)
    return torch.searchsorted(sorted_expert_for_source_row.contiguous(), experts, right=True).int()


@op
def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
) -> torch.Tensor:
    """skip1 + skip2 + the sum over a token's choices of scale * (row + the expert's bias): (T, H).

    Not supported: drop_pad_mode. Source: op-plugin docs; caller vllm_ascend/ops/fused_moe.py@v0.9.1rc2.

    Args:
        expanded_permuted_rows: (T * K, H).
        bias: (E, H).
        scales: (T, K); None for K = 1.
        expanded_src_to_dst_row: (T * K,), the second result of npu_moe_init_routing; -1 for no row.
        export_for_source_row: (T, K), the experts; needed with bias.
    """
    refuse("npu_moe_finalize_routing", drop_pad_mode=drop_pad_mode or None)
    choices = 1 if scales is None else scales.shape[1]
    places = expanded_src_to_dst_row.view(choices, -1).T.long()
    rows = wide(expanded_permuted_rows)[places.clamp(min=0)] * (places >= 0).unsqueeze(-1)
    if bias is not None:
        if export_for_source_row is None:
            raise ValueError("torch_npu.npu_moe_finalize_routing: bias needs export_for_source_row")
        rows = rows + wide(bias)[export_for_source_row.long()]
    if scales is not None:
        rows = rows * wide(scales).unsqueeze(-1)
    out = rows.sum(1)
    for skip in (skip1, skip2):
        out = out if skip is None else out + wide(skip)
    return out.to(expanded_permuted_rows.dtype)
