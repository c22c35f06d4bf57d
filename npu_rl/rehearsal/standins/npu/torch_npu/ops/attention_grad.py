"""Ops of ring attention (context parallelism): gradients from given softmax statistics, and joining of blocks."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide
from . import layouts
from .attention import UNLIMITED, blocks, check_sequences, per_query_head, scores
from .masks import Masking, hidden


@op
def npu_fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED,
    next_tockens: int = UNLIMITED,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value for the gradient `dy` of npu_fusion_attention's result.

    softmax_max, softmax_sum and attention_in may be those of an attention over more keys than these; the gradient is
    then the share of this block. Not supported: what npu_fusion_attention does not support.
    Source: op-plugin's signature; caller mindspeed/core/context_parallel/ring_context_parallel@7ff818c.

    Returns:
        The gradients in the layout and types of the inputs, and two empty tensors.
    """
    name = "npu_fusion_attention_grad"
    refuse(name, pse=pse, padding_mask=padding_mask, prefix=prefix, sink=sink)
    if keep_prob != 1:
        raise UnsupportedArgument(f"torch_npu.{name}", "keep_prob", keep_prob)
    if softmax_max is None or softmax_sum is None or attention_in is None:
        raise ValueError(f"torch_npu.{name}: softmax_max, softmax_sum and attention_in are needed")
    layouts.check(name, input_layout, query)
    masking = Masking(sparse_mode, atten_mask, pre_tockens, next_tockens)
    if input_layout == "TND":
        ends_q = layouts.sequence_ends(name, "actual_seq_qlen", actual_seq_qlen, query.shape[0])
        ends_kv = layouts.sequence_ends(name, "actual_seq_kvlen", actual_seq_kvlen, key.shape[0])
        check_sequences(name, ends_q, ends_kv)
        tnd = softmax_layout == "TND"
        sequences = zip(
            layouts.cut(query, ends_q),
            layouts.cut(key, ends_kv),
            layouts.cut(value, ends_kv),
            layouts.cut(dy, ends_q),
            layouts.cut(attention_in, ends_q),
            layouts.cut_statistics(softmax_max, ends_q, tnd),
            layouts.cut_statistics(softmax_sum, ends_q, tnd),
            strict=True,
        )
        parts = [
            _gradients(name, q, k, v, up, result, largest, total, scale_value, masking)
            for q, k, v, up, result, largest, total in sequences
        ]
        gradients = [
            layouts.join([part[i] for part in parts], (x.shape[0], x.shape[1], x.shape[2]), x.dtype)
            for i, x in enumerate((query, key, value))
        ]
    else:
        q, k, v = blocks(input_layout, query, key, value, head_num)
        upstream, result = (layouts.to_bnsd(input_layout, x, head_num) for x in (dy, attention_in))
        statistics = softmax_max[..., :1], softmax_sum[..., :1]
        whole = _gradients(name, q, k, v, upstream, result, *statistics, scale_value, masking)
        gradients = [layouts.from_bnsd(input_layout, gradient) for gradient in whole]
    nothing = query.new_empty(0)
    dq, dk, dv = (gradient.to(x.dtype) for gradient, x in zip(gradients, (query, key, value), strict=True))
    return dq, dk, dv, nothing, nothing


def _gradients(
    name: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dy: torch.Tensor,
    result: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    scale: float,
    masking: Masking,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk and dv as (B, N, S, D); those of keys and values are sums over the query heads that share them."""
    hide = hidden(name, masking, q.shape[2], k.shape[2])
    weights = (scores(name, q, k, scale, hide) - largest).exp() / total.masked_fill(total == 0, 1.0)
    upstream = wide(dy)
    of_weights = upstream @ wide(per_query_head(v, q)).transpose(-1, -2)
    of_scores = weights * (of_weights - (upstream * wide(result)).sum(-1, keepdim=True)) * scale
    dq = of_scores @ wide(per_query_head(k, q))
    dk = of_scores.transpose(-1, -2) @ wide(q)
    dv = weights.transpose(-1, -2) @ upstream
    shared = q.shape[1] // k.shape[1]
    return dq, *(gradient.unflatten(1, (-1, shared)).sum(2) for gradient in (dk, dv))


@op
def npu_ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    *,
    actual_seq_qlen: Any = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Join the attention over two sets of keys: the result, maximum and sum over both.

    Results are (S, B, H) with statistics (B, N, S, 8), or for input_layout TND (T, N, D) with statistics (T, N, 8) as
    npu_fusion_attention returns them: unless input_softmax_layout is "TND", each sequence's are in the order (N, S),
    and actual_seq_qlen has the ends of the sequences.
    Source: op-plugin test_npu_ring_attention_update.py and mindspeed/core/context_parallel/utils.py@7ff818c.
    """
    name = "npu_ring_attention_update"
    if input_layout not in ("SBH", "TND"):
        raise UnsupportedArgument(f"torch_npu.{name}", "input_layout", input_layout)
    if input_layout == "TND" and input_softmax_layout != "TND":
        tokens, heads = prev_attn_out.shape[:2]
        ends = layouts.sequence_ends(name, "actual_seq_qlen", actual_seq_qlen, tokens)

        def turn(statistic: torch.Tensor, from_tnd: bool) -> torch.Tensor:
            parts = layouts.cut_statistics(statistic, ends, from_tnd)
            repeated = [layouts.repeat_statistic(part) for part in parts]
            return layouts.join_statistics(repeated, tokens, heads, not from_tnd)

        statistics = (prev_softmax_max, prev_softmax_sum, cur_softmax_max, cur_softmax_sum)
        prev_max, prev_sum, cur_max, cur_sum = (turn(statistic, False) for statistic in statistics)
        out, largest, total = _join(
            input_layout, prev_attn_out, prev_max, prev_sum, cur_attn_out, cur_max, cur_sum
        )
        return out, turn(largest, True), turn(total, True)
    return _join(
        input_layout,
        prev_attn_out,
        prev_softmax_max,
        prev_softmax_sum,
        cur_attn_out,
        cur_softmax_max,
        cur_softmax_sum,
    )


def _join(
    layout: str,
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    prev_share = prev_softmax_sum * (prev_softmax_max - largest).exp()
    cur_share = cur_softmax_sum * (cur_softmax_max - largest).exp()
    total = prev_share + cur_share
    divisor = total.masked_fill(total == 0, 1.0)

    def weigh(result: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        weight = (share / divisor)[..., :1]
        if layout == "TND":
            return wide(result) * weight
        heads = weight.permute(2, 0, 1, 3)
        return (wide(result).unflatten(-1, (heads.shape[2], -1)) * heads).flatten(2)

    out = weigh(prev_attn_out, prev_share) + weigh(cur_attn_out, cur_share)
    return out.to(prev_attn_out.dtype), largest, total
