"""Adaptation kv-nz-prefill: prompts are written to the KV cache in NZ once, by slots, as the decoder reads it.

vllm-ascend f20869e writes prompts in the mode PA_BLK_NZ, whose index counts blocks, with an index of slots, and then
once more as rows (vllm_ascend/attention/mla_v1.py:927 and :1190): "output of Deepseek R1 is invalid"
(vllm-ascend#2988). Without `enable_kv_nz` nothing differs.
"""

from __future__ import annotations

from .switches import enabled
from .used import count

SLUG = "kv-nz-prefill"


def cache_mode(nz: bool) -> str:
    """Return the cache_mode of torch_npu.npu_kv_rmsnorm_rope_cache for prompts."""
    if not nz:
        return "PA"
    if not enabled(SLUG):
        return "PA_BLK_NZ"
    count(SLUG)
    return "PA_NZ"


def writes_rows(nz: bool) -> bool:
    """Whether a prompt is then written as rows, which is wrong after NZ."""
    return not (nz and enabled(SLUG))
