"""The ops of vLLM's compiled module `vllm._C` that its CPU platform calls for models like Llama and DeepSeek.

Signatures are those of csrc/cpu/torch_bindings.cpp@0.9.1, which 0.18.0 has, too. As there, arithmetic is in float32
whatever the tensors' type, and results are written into the caller's tensors. This module also stands in for `vllm._C`
itself, so that vLLM's import of it succeeds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from npu_rl_standins.used import count

from . import missing

_libraries: list[torch.library.Library] = []  # an op exists as long as its library


def install(more: Mapping[str, Any] | None = None) -> None:
    """Define the ops, and make every other name raise with its name; a second call has no effect.

    Args:
        more: Further operators by their schemas, which a version of vLLM calls.
    """
    if _libraries:
        return
    library = torch.library.Library("_C", "FRAGMENT")
    for schema, function in {**_OPS, **(more or {})}.items():
        library.define(schema)
        # For all devices, also without a tensor: vLLM asks for its schedule with tensors of any.
        library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    _libraries.append(library)
    missing.install()
    sys.modules["vllm._C"] = sys.modules[__name__]


def silu_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    """Write silu(gate) * up of input (..., 2d), gate first, to out (..., d)."""
    count("vllm.silu_and_mul")
    gate, up = input.float().chunk(2, dim=-1)
    out.copy_(F.silu(gate) * up)


def rms_norm(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """Write input / sqrt(mean(input^2) + epsilon) * weight, over the last dimension, to out."""
    count("vllm.rms_norm")
    out.copy_(_normed(input.float(), weight, epsilon).view_as(out))


def fused_add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    """Add input to residual, then set input to rms_norm(residual), both **in place**."""
    count("vllm.fused_add_rms_norm")
    residual.copy_(residual.float() + input.float())
    input.copy_(_normed(residual.float(), weight, epsilon))


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Apply the rotary embedding to query and key (tokens, heads * head_size) **in place**.

    Args:
        positions: (tokens).
        cos_sin_cache: (positions, rotary width): cosines, then sines, for the first `rotary width` entries of each
            head.
        is_neox: Whether entry i is paired with i + half; else 2i with 2i + 1.
    """
    count("vllm.rotary_embedding")
    cos, sin = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, dim=-1)
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.view(positions.numel(), -1, head_size)
        rotated = heads[..., : cos_sin_cache.shape[-1]]
        if is_neox:
            first, second = rotated.chunk(2, dim=-1)
        else:
            first, second = rotated[..., ::2], rotated[..., 1::2]
        new = first * cos - second * sin, second * cos + first * sin
        first.copy_(new[0])
        second.copy_(new[1])


def _normed(wide: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon) * weight.float()


_OPS: dict[str, Any] = {
    "silu_and_mul(Tensor! out, Tensor input) -> ()": silu_and_mul,
    "rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()": rms_norm,
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()": fused_add_rms_norm,
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox) -> ()": rotary_embedding,
}
