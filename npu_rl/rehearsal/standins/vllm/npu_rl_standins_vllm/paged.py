"""Attention over vLLM's paged KV cache, as in Intel's extension for PyTorch, in plain torch.

vllm/attention/ops/ipex_attn.py and backends/torch_sdpa.py@0.9.1 call these. A cache of keys or values is (blocks, KV
heads, block size, head size); token t of a sequence is in block `block_table[t // block size]`, at t % block size.
Slots count over blocks: block * block size + offset. Products and softmax are in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument
from npu_rl_standins.used import count


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write key and value (tokens, KV heads, head size) to their slots (tokens); a negative slot is padding."""
    count("vllm.paged.reshape_and_cache")
    write_to_cache(key, value, key_cache, value_cache, slot_mapping)


def write_to_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write key and value as `reshape_and_cache`, for any version of vLLM."""
    real = slot_mapping >= 0
    slots = slot_mapping[real].long()
    size = key_cache.shape[2]
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache[slots // size, :, slots % size] = new[real].to(cache.dtype)


def flash_attn_varlen_func(
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start: torch.Tensor,
    kv_start: torch.Tensor,
    max_query: int,  # noqa: ARG001  for a kernel's grid, as max_kv
    max_kv: int,  # noqa: ARG001
    scale: float,
    causal: bool,
    block_table: torch.Tensor,
    alibi_slopes: torch.Tensor | None = None,
    **others: Any,
) -> None:
    """Compute attention of sequences with several new tokens each: whole prompts, or chunks of them.

    Args:
        output: (tokens, heads, head size), sequence after sequence.
        query: (tokens, heads, head size), sequence after sequence.
        query_start: (sequences + 1), cumulative numbers of new tokens.
        kv_start: (sequences + 1), cumulative numbers of all tokens; their keys and values are in the cache already.
    """
    count("vllm.paged.flash_attn_varlen_func")
    _refuse("flash_attn_varlen_func", alibi_slopes=alibi_slopes, **others)
    if not causal:
        raise UnsupportedArgument("flash_attn_varlen_func", "causal", causal)
    lengths = kv_start.diff().long()
    output.copy_(
        paged_attention(query, key_cache, value_cache, query_start.long(), lengths, block_table, scale)
    )


def single_query_cached_kv_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    head_mapping: torch.Tensor,  # noqa: ARG001  vLLM's is always the even split that the shapes say
    scale: float,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,  # noqa: ARG001  the cache's own
    max_length: int,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,
    **others: Any,
) -> None:
    """Compute attention of sequences with one new token each; `lengths` (sequences) includes it."""
    count("vllm.paged.single_query_cached_kv_attention")
    _refuse("single_query_cached_kv_attention", alibi_slopes=alibi_slopes, **others)
    starts = torch.arange(len(query) + 1)
    output.copy_(paged_attention(query, key_cache, value_cache, starts, lengths.long(), block_table, scale))


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return attention (tokens, heads, head size) in float32, of all sequences at once, padded to the longest."""
    new = starts.diff()
    row = torch.arange(int(new.max()))
    here = row < new[:, None]  # (sequences, new tokens): whether a row is a token, not padding
    padded = query.new_zeros(*here.shape, *query.shape[1:], dtype=torch.float32)
    padded[here] = query.float()

    keys = _gather_cache(key_cache, block_table, lengths)  # (sequences, KV heads, tokens, head size)
    values = _gather_cache(value_cache, block_table, lengths)
    kv_heads, per_kv_head = keys.shape[1], query.shape[1] // keys.shape[1]
    grouped = padded.transpose(1, 2).unflatten(1, (kv_heads, per_kv_head))
    scores = grouped @ keys.unsqueeze(2).transpose(-1, -2) * scale

    position = (lengths - new)[:, None] + row  # of each row in its sequence
    seen = torch.arange(keys.shape[2]) <= position[..., None]  # (sequences, new tokens, tokens)
    weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(dim=-1)
    result = (weights @ values.unsqueeze(2)).flatten(1, 2).transpose(1, 2)
    return result[here]


def _gather_cache(cache: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    longest = int(lengths.max())
    blocks = cache[block_table[:, : -(-longest // cache.shape[2])].long()]
    tokens = blocks.transpose(1, 2).flatten(2, 3)[:, :, :longest].float()
    # Slots after a sequence's end belong to others; a NaN there would survive a weight of 0.
    beyond = torch.arange(longest) >= lengths[:, None]
    return tokens.masked_fill(beyond[:, None, :, None], 0.0)


def _refuse(function: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedArgument(function, name, value)
