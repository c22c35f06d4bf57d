"""npu_fusion_attention: attention of whole sequences, for training."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide
from . import layouts
from .masks import Masking, hidden

UNLIMITED = 2147483647


@op
def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED,
    next_tockens: int = UNLIMITED,
    inner_precise: int = 0,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    seed: int = 0,
    offset: int = 0,
    **unsupported: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """softmax(scale * query @ key^T, masked) @ value, with gradients.

    A query that sees no key gives zeros, as an NPU's inner_precise=2 does, whatever inner_precise is.
    Not supported: pse, padding_mask, keep_prob below 1, prefix, sparse modes 5 to 8, sink.
    Source: op-plugin docs; callers mindspeed/core/transformer/flash_attention and context_parallel @7ff818c.

    Args:
        query: In the layout, with head_num heads.
        key: In the layout; its number of heads divides head_num.
        value: In the layout; its head dim may be smaller than query's and key's.
        head_num: Number of query heads.
        input_layout: SBH, BSH, BSND, BNSD or TND.
        atten_mask: True for keys that are not seen (masks.py).
        actual_seq_qlen: Ends of the query sequences, for TND.
        actual_seq_kvlen: Ends of the key sequences, for TND.
        sparse_mode: 0 to 4 (masks.py).

    Returns:
        The result in query's layout and type; maximum and sum of each row's softmax, float32, (B, N, Sq, 8) or for TND
        (T, N, 8); an empty tensor and three zeros, which are about dropout.
    """
    name = "npu_fusion_attention"
    refuse(name, **unsupported)
    if keep_prob != 1:
        raise UnsupportedArgument(
            f"torch_npu.{name}", "keep_prob", keep_prob, "dropout draws other numbers than an NPU"
        )
    layouts.check(name, input_layout, query)
    masking = Masking(sparse_mode, atten_mask, pre_tockens, next_tockens)
    if input_layout == "TND":
        ends_q = layouts.sequence_ends(name, "actual_seq_qlen", actual_seq_qlen, query.shape[0])
        ends_kv = layouts.sequence_ends(name, "actual_seq_kvlen", actual_seq_kvlen, key.shape[0])
        if len(ends_q) != len(ends_kv):
            raise ValueError(f"torch_npu.{name}: {len(ends_q)} sequences of queries, {len(ends_kv)} of keys")
        triples = zip(
            layouts.cut(query, ends_q), layouts.cut(key, ends_kv), layouts.cut(value, ends_kv), strict=True
        )
        results = [_attend(name, *triple, scale, masking) for triple in triples]
        shape = (query.shape[0], query.shape[1], value.shape[2])
        out = layouts.join([result[0] for result in results], shape, query.dtype)
        tnd = softmax_layout == "TND"
        largest, total = (
            layouts.join_statistics([result[i] for result in results], query.shape[0], query.shape[1], tnd)
            for i in (1, 2)
        )
    else:
        q = layouts.to_bnsd(input_layout, query, head_num)
        kv_heads = layouts.heads_of(input_layout, key, q.shape[-1])
        k, v = (layouts.to_bnsd(input_layout, x, kv_heads) for x in (key, value))
        out, largest, total = _attend(name, q, k, v, scale, masking)
        out = layouts.from_bnsd(input_layout, out)
    return out.to(query.dtype), largest, total, query.new_empty(0), 0, 0, 0


def _attend(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, masking: Masking
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result (B, N, Sq, Dv) in the wide type, and each row's maximum and sum as (B, N, Sq, 8)."""
    if q.shape[1] % k.shape[1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"torch_npu.{name}: query {tuple(q.shape)} and key {tuple(k.shape)} as (B, N, S, D)")
    shared = q.shape[1] // k.shape[1]  # query heads of a key head
    keys, values = (wide(x.repeat_interleave(shared, 1)) for x in (k, v))
    weights = wide(q) @ keys.transpose(-1, -2) * scale
    hide = hidden(name, masking, q.shape[2], k.shape[2])
    if hide is not None:
        weights = weights.masked_fill(hide, float("-inf"))
    if not weights.shape[-1]:
        nothing = weights.new_zeros(*weights.shape[:-1], 1)
        return weights @ values, *(layouts.repeat_statistic(nothing) for _ in range(2))
    largest = weights.detach().amax(-1, keepdim=True)
    largest = largest.masked_fill(largest.isinf(), 0.0)
    weights = (weights - largest).exp()
    total = weights.sum(-1, keepdim=True)
    out = weights / total.masked_fill(total == 0, 1.0) @ values
    return out, layouts.repeat_statistic(largest.float()), layouts.repeat_statistic(total.float())
