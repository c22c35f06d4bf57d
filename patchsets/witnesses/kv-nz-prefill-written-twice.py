"""Show how vllm-ascend f20869e's attention writes a prompt to the KV cache, with and without NZ.

With `enable_kv_nz` (additional_config of verl_patches' rollout) it writes in the mode PA_BLK_NZ, whose index counts
blocks, with an index of slots, and then once more as rows (vllm_ascend/attention/mla_v1.py:927 and :1190); the decoder
reads PA_NZ by slots: "output of Deepseek R1 is invalid" (vllm-ascend#2988). What runs is AscendMLAImpl.forward on a
batch of one prompt, with torchair's graphs on; the projections and the attention over the prompt are made here, and the
two ops that write to the cache note their mode.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch_npu
from witness_common import find_ascend, show

find_ascend()
from vllm_ascend.attention import mla_v1  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

TOKENS, HEADS, LATENT, ROPE, NOPE = 3, 2, 32, 16, 16


def writes(nz: bool) -> list[str]:
    """Return the writes of one prompt, in their order."""
    noted: list[str] = []

    def norm_rope_cache(kv: torch.Tensor, *_: Any, cache_mode: str, **__: Any) -> tuple[Any, ...]:
        noted.append(cache_mode)
        return None, None, kv[..., LATENT:], kv[..., :LATENT]

    torch_npu.npu_kv_rmsnorm_rope_cache = norm_rope_cache
    torch_npu._npu_reshape_and_cache = lambda **_: noted.append("rows")
    attention = mla_v1.AscendMLAImpl.__new__(mla_v1.AscendMLAImpl)
    attention.torchair_graph_enabled, attention.enable_kv_nz = True, nz
    attention.num_heads, attention.num_kv_heads = HEADS, 1
    attention.kv_lora_rank, attention.qk_rope_head_dim, attention.qk_nope_head_dim = LATENT, ROPE, NOPE
    attention.qk_head_dim = NOPE + ROPE
    attention.kv_a_proj_with_mqa = lambda x: (torch.zeros(len(x), LATENT + ROPE),)
    attention.kv_a_layernorm = SimpleNamespace(weight=torch.ones(LATENT), variance_epsilon=1e-6)
    attention.q_proj = lambda x: (torch.zeros(len(x), HEADS * (NOPE + ROPE)),)
    table = torch.zeros(8, ROPE)
    attention.rotary_emb = SimpleNamespace(
        max_position_embeddings=8, scaling_factor=1, cos_cached=table, sin_cached=table
    )
    attention._forward_prefill = lambda *_: torch.zeros(TOKENS, HEADS)
    metadata = SimpleNamespace(
        is_mtp_model=False,
        attn_state=mla_v1.AscendAttentionState.PrefillNoCache,
        num_actual_tokens=TOKENS,
        num_decodes=0,
        num_decode_tokens=0,
        num_prefills=1,
        slot_mapping=torch.arange(TOKENS),
        prefill=SimpleNamespace(input_positions=torch.arange(TOKENS)),
    )
    cache = (torch.zeros(1, 8, 1, LATENT), torch.zeros(1, 8, 1, ROPE))
    hidden = torch.zeros(TOKENS, 8)
    rope, output = torch.zeros(TOKENS, ROPE), torch.zeros(TOKENS, HEADS)
    attention.forward(SimpleNamespace(), hidden, hidden, rope, cache, metadata, output)
    return noted


def main() -> dict[str, Any]:
    found = {"nz": writes(nz=True), "rows": writes(nz=False)}
    return {"fault": found != {"nz": ["PA_NZ"], "rows": ["PA", "rows"]}, **found}


if __name__ == "__main__":
    show(main)
