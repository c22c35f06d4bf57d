"""Attention over a paged cache, for inference; results are written to `out`."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..registry import op, wide


@op
def _npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write each token's key and value to its slot, **in place**.

    Not supported: caches in the NZ format. Source: op-plugin test_atb_reshape_and_cache.py.

    Args:
        key: (T, N, D).
        value: (T, N, D).
        key_cache: (blocks, block size, N, D).
        value_cache: (blocks, block size, N, D).
        slot_indices: (T,), block * block size + offset; tokens with a negative one are left out.
    """
    kept = slot_indices >= 0
    for cache, new in ((key_cache, key), (value_cache, value)):
        if cache.shape[2:] != new.shape[1:]:
            raise UnsupportedArgument(
                "torch_npu._npu_reshape_and_cache",
                "key_cache",
                cache,
                f"shape {tuple(cache.shape)}, not (.., .., N, D)",
            )
        cache.view(-1, *cache.shape[2:])[slot_indices[kept].long()] = new[kept].to(cache.dtype)


@op
def _npu_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """Attention of whole sequences, one after the other.

    Source: op-plugin test_atb_flash_attention.py.

    Args:
        query: (T, N, D).
        key: (T, Nk, D).
        value: (T, Nk, D).
        mask: (.., S, S); keys whose entry is not 0 are not seen, whatever the value is
            (vllm_ascend/attention/attention_mask.py@v0.9.1rc2 writes 1, -inf or -10000, depending on the type). A mask
            with more than one such value is refused.
        seq_len: (B,), lengths of the sequences.
        out: (T, N, Dv), the result.
    """
    hide = _hidden("_npu_flash_attention", mask)
    lengths = [int(length) for length in seq_len]
    result = out.view(query.shape[0], num_heads, -1)
    start = 0
    for length in lengths:
        if hide.shape[-1] < length or hide.shape[-2] < length:
            raise UnsupportedArgument(
                "torch_npu._npu_flash_attention", "mask", mask, f"a sequence has {length} tokens"
            )
        tokens = slice(start, start + length)
        q = query[tokens].view(length, num_heads, -1)
        k, v = (x[tokens].reshape(length, num_kv_heads, -1) for x in (key, value))
        result[tokens] = _attend(q, k, v, scale_value, hide[:length, :length]).to(out.dtype)
        start += length


def _hidden(name: str, mask: torch.Tensor) -> torch.Tensor:
    flat = mask.reshape(-1, *mask.shape[-2:])
    if flat.shape[0] != 1 and not bool((flat == flat[:1]).all()):
        raise UnsupportedArgument(f"torch_npu.{name}", "mask", mask, "sequences with different masks")
    if torch.unique(flat[0][flat[0] != 0]).numel() > 1:
        raise UnsupportedArgument(f"torch_npu.{name}", "mask", mask, "more than one value (a bias)")
    return flat[0] != 0


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hide: torch.Tensor | None
) -> torch.Tensor:
    """Return attention of q (Sq, N, D), k (Sk, Nk, D) and v (Sk, Nk, Dv) as (Sq, N, Dv), in the wide type."""
    shared = q.shape[1] // k.shape[1]
    keys, values = (wide(x).repeat_interleave(shared, 1).transpose(0, 1) for x in (k, v))
    scores = wide(q).transpose(0, 1) @ keys.transpose(-1, -2) * scale
    if hide is not None:
        scores = scores.masked_fill(hide, float("-inf"))
    return (scores.softmax(-1) @ values).transpose(0, 1)


@op
def _npu_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: Any = None,
) -> None:
    """Attention of one new token of each sequence over the sequence's cache.

    Source: op-plugin test_atb_paged_attention.py.

    Args:
        query: (B, N, D).
        key_cache: (blocks, block size, Nk, D).
        value_cache: (blocks, block size, Nk, D).
        block_table: (B, blocks of a sequence).
        context_lens: (B,), tokens in the cache, including the new one.
        out: (B, N, Dv), the result.
    """
    _decode(
        query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens, out
    )


@op
def _npu_paged_attention_mla(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mla_vheadsize: int,
    out: torch.Tensor,
    workspace: Any = None,
) -> None:
    """Paged attention whose values are the first mla_vheadsize entries of the cached keys.

    Other arguments are those of _npu_paged_attention. Source: op-plugin test_atb_paged_attention_mla.py.
    """
    values = key_cache[..., :mla_vheadsize]
    _decode(query, key_cache, values, num_kv_heads, num_heads, scale_value, block_table, context_lens, out)


def _decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    result = out.view(query.shape[0], num_heads, -1)
    for row, length in enumerate(int(length) for length in context_lens):
        blocks = block_table[row].long()
        k, v = (
            cache[blocks].reshape(-1, num_kv_heads, cache.shape[-1])[:length]
            for cache in (key_cache, value_cache)
        )
        q = query[row].view(1, num_heads, -1)
        result[row] = _attend(q, k, v, scale, None)[0].to(out.dtype)
