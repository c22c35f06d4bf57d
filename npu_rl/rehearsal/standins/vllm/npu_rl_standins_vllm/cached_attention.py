"""The attention operators of vLLM 0.18.0's CPU platform, over the paged KV cache of `paged`.

vllm/v1/attention/backends/cpu_attn.py@0.18.0 calls these as torch.ops._C; signatures are those of
csrc/cpu/torch_bindings.cpp. The compiled operators pack the cache for an instruction set; here it is plain, and only
these operators read it.
"""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument
from npu_rl_standins.used import count

from .paged import paged_attention, write_to_cache


def get_scheduler_metadata(*_: Any) -> torch.Tensor:
    """Return how the compiled kernel splits its work over threads: there is nothing to split."""
    count("vllm.get_scheduler_metadata")
    return torch.empty(0, dtype=torch.int8)


def cpu_attn_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    isa: str,  # noqa: ARG001  the instruction set that the compiled one packs for
) -> None:
    """Write key and value (tokens, KV heads, head size) to their slots; rows after the last slot are padding."""
    count("vllm.cpu_attn_reshape_and_cache")
    tokens = len(slot_mapping)
    write_to_cache(key[:tokens], value[:tokens], key_cache, value_cache, slot_mapping)


def cpu_attention_with_kv_cache(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    causal: bool,
    alibi_slopes: torch.Tensor | None,
    sliding_window_left: int,
    sliding_window_right: int,
    block_table: torch.Tensor,
    softcap: float,
    scheduler_metadata: torch.Tensor,  # noqa: ARG001
    s_aux: torch.Tensor | None,
) -> None:
    """Compute causal attention of all sequences, as `paged.paged_attention`, into output (tokens, heads, head size)."""
    count("vllm.cpu_attention_with_kv_cache")
    name = "cpu_attention_with_kv_cache"
    if not causal:
        raise UnsupportedArgument(name, "causal", causal)
    for argument, value, plain in (
        ("alibi_slopes", alibi_slopes, None),
        ("sliding_window_left", sliding_window_left, -1),
        ("sliding_window_right", sliding_window_right, -1),
        ("softcap", softcap, 0),
        ("s_aux", s_aux, None),
    ):
        if value is not plain and value != plain:
            raise UnsupportedArgument(name, argument, value)
    requests = len(seq_lens)
    starts = query_start_loc[: requests + 1].long()
    found = paged_attention(
        query, key_cache, value_cache, starts, seq_lens.long(), block_table[:requests], scale
    )
    output.copy_(found.view_as(output))


OPS: dict[str, Any] = {
    "get_scheduler_metadata(int num_req, int num_heads_q, int num_heads_kv, int head_dim, Tensor seq_lens, "
    "ScalarType dtype, Tensor query_start_loc, bool casual, int window_size, str isa_hint, bool enable_kv_split) "
    "-> Tensor": get_scheduler_metadata,
    "cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor(a2!) key_cache, Tensor(a3!) value_cache, "
    "Tensor slot_mapping, str isa) -> ()": cpu_attn_reshape_and_cache,
    "cpu_attention_with_kv_cache(Tensor query, Tensor key_cache, Tensor value_cache, Tensor(a3!) output, "
    "Tensor query_start_loc, Tensor seq_lens, float scale, bool causal, Tensor? alibi_slopes, "
    "SymInt sliding_window_left, SymInt sliding_window_right, Tensor block_table, float softcap, "
    "Tensor scheduler_metadata, Tensor? s_aux) -> ()": cpu_attention_with_kv_cache,
}
"""The operators by their schemas, for `ops.install`."""
