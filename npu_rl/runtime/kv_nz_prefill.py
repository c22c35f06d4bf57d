"""Adaptation kv-nz-prefill: prompts are written to the KV cache once, in NZ format and by slot, as decoding reads it.

vllm-ascend f20869e writes prompts in the mode PA_BLK_NZ, which expects block indices, with slot indices, and then
writes them again as rows (vllm_ascend/attention/mla_v1.py:927 and :1190): "output of Deepseek R1 is invalid"
(vllm-ascend#2988). Without `enable_kv_nz` nothing changes.
"""

from __future__ import annotations

from .switches import enabled
from .used import count

SLUG = "kv-nz-prefill"


def cache_mode(nz: bool) -> str:
    """Return torch_npu.npu_kv_rmsnorm_rope_cache's cache_mode for prompts."""
    if not nz:
        return "PA"
    if not enabled(SLUG):
        return "PA_BLK_NZ"
    count(SLUG)
    return "PA_NZ"


def writes_rows(nz: bool) -> bool:
    """Return whether a prompt is also written as rows, which is wrong in NZ format."""
    return not (nz and enabled(SLUG))
