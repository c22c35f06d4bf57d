"""Norm, rotary embedding and cache of multi-head latent attention in one op."""

from __future__ import annotations

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

from ..missing import refuse
from ..registry import op, wide
from .rotary import pairs_to_halves, rotate_half


@op
def npu_kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Norm the first len(gamma) entries of kv, embed the rest by position, and write both to paged caches.

    Rotary pairs are side by side in kv and apart in the cache. The NPU requires C = 512 and R = 64; here any size is
    possible. Supported are cache_mode "PA" and "PA_BNSD", not quantised caches, `v`, "Norm" and the NZ and BLK modes.
    Source: op-plugin test_npu_kv_rms_norm_rope_cache.py; caller vllm_ascend/attention/mla_v1.py@v0.9.1rc2.

    Args:
        kv: (B, 1, S, C + R).
        gamma: (C,).
        cos: (B, 1, S, R).
        sin: (B, 1, S, R).
        index: (B * S,), the slot of each token, or -1.
        k_cache: (blocks, block size, 1, R), written **in place**.
        ckv_cache: (blocks, block size, 1, C), written **in place**.
        is_output_kv: Whether to return keys and latents.

    Returns:
        Both caches and, with is_output_kv, the keys (B, 1, S, R) and the normed latents (B, 1, S, C), else None twice.
    """
    name = "npu_kv_rmsnorm_rope_cache"
    refuse(name, k_rope_scale=k_rope_scale, c_kv_scale=c_kv_scale, k_rope_offset=k_rope_offset)
    refuse(name, c_kv_offset=c_kv_offset, v=v)
    if cache_mode not in ("PA", "PA_BNSD"):
        raise UnsupportedArgument(f"torch_npu.{name}", "cache_mode", cache_mode)
    latent, keys = wide(kv).split([gamma.shape[0], kv.shape[-1] - gamma.shape[0]], -1)
    latent = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + epsilon) * wide(gamma)
    keys = pairs_to_halves(keys)
    keys = keys * wide(cos) + rotate_half(keys) * wide(sin)
    kept = index >= 0
    for cache, new in ((k_cache, keys), (ckv_cache, latent)):
        flat = cache.view(-1, cache.shape[-1])
        flat[index[kept].long()] = new.reshape(-1, new.shape[-1])[kept].to(cache.dtype)
    if not is_output_kv:
        return k_cache, ckv_cache, None, None
    return k_cache, ckv_cache, keys.to(kv.dtype), latent.to(kv.dtype)
