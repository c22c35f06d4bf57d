"""The module from which vLLM imports PagedAttention."""

from __future__ import annotations

from typing import NoReturn

from npu_rl_standins.unsupported import NoCpuVersion
from npu_rl_standins_vllm import paged
from npu_rl_standins_vllm.missing import COMPILED


class PagedAttention:
    """Attention over a paged KV cache (npu_rl_standins_vllm/paged.py)."""

    reshape_and_cache = staticmethod(paged.reshape_and_cache)
    flash_attn_varlen_func = staticmethod(paged.flash_attn_varlen_func)
    single_query_cached_kv_attention = staticmethod(paged.single_query_cached_kv_attention)


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise NoCpuVersion(f"{__name__}.{name}", COMPILED)
