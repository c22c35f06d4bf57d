"""Call what verl_npu's patches changed in transformers, and print what came out.

    python run_transformers.py posids|dense|batch|rope

On PYTHONPATH: the stand-ins for a CPU and for torch_npu, and a tree with transformers. The output is one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F
import torch_npu

CONFIG = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "moe_intermediate_size": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}


def posids() -> dict[str, Any]:
    """Two sequences of 3 and 5 tokens, packed; the length that is given is that of one part of two."""
    from transformers.modeling_flash_attention_utils import _prepare_from_posids

    query, key, value = (torch.zeros(1, 8, 2, 4) for _ in range(3))
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    *_, bounds, longest = _prepare_from_posids(query, key, value, positions, 4)
    return {"bounds": [bound.tolist() for bound in bounds], "longest": list(longest)}


def _qwen3_moe() -> Any:
    from transformers.models.qwen3_moe import modeling_qwen3_moe as module

    module.torch_npu = torch_npu  # imported there where there is an NPU
    torch.manual_seed(1)
    return module


def _dense(layer: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layer.down_proj(F.silu(layer.gate_proj(x)) * layer.up_proj(x))
    return result


def dense() -> dict[str, Any]:
    """The output of a dense layer, and how far it is from the formula's."""
    module = _qwen3_moe()
    layer = module.Qwen3MoeMLP(module.Qwen3MoeConfig(**CONFIG))
    x = torch.randn(2, 3, 8)
    try:
        return {"off": float((layer(x) - _dense(layer, x)).abs().max())}
    except NameError as error:
        return {"error": str(error)}


def batch() -> dict[str, Any]:
    """The experts on two sequences of three tokens, forward and backward, against each token's own two experts."""
    module = _qwen3_moe()
    block = module.Qwen3MoeSparseMoeBlock(module.Qwen3MoeConfig(**CONFIG))
    x = torch.randn(2, 3, 8)
    given, own = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, _ = block(given)
    shares, chosen = block.gate(own.view(-1, 8)).softmax(-1).topk(2, -1)
    shares = shares / shares.sum(-1, keepdim=True)
    rows = [
        sum(share * _dense(block.experts[index], token) for share, index in zip(*pair, strict=True))
        for token, *pair in zip(own.view(-1, 8), shares, chosen.tolist(), strict=True)
    ]
    expected = torch.stack(rows)
    (output.reshape(-1, 8) * torch.arange(8.0)).sum().backward()
    (expected * torch.arange(8.0)).sum().backward()
    assert given.grad is not None and own.grad is not None
    return {
        "shape": list(output.shape),
        "off": float((output.reshape(-1, 8) - expected).abs().max()),
        "gradient off": float((given.grad - own.grad).abs().max()),
    }


def rope() -> dict[str, Any]:
    """How far the fused RoPE is from transformers' own; or the error."""
    from transformers.models.qwen2 import modeling_qwen2 as module

    module.torch_npu = torch_npu
    q, k, cos, sin = (torch.randn(2, *shape, 4) for shape in ((3, 5), (1, 5), (5,), (5,)))
    try:
        fused = module.fused_apply_rotary_pos_emb(q, k, cos, sin)
    except AttributeError as error:
        return {"error": str(error)}
    own = module.apply_rotary_pos_emb(q, k, cos, sin)
    return {"off": max(float((one - other).abs().max()) for one, other in zip(fused, own, strict=True))}


if __name__ == "__main__":
    print(json.dumps({"posids": posids, "dense": dense, "batch": batch, "rope": rope}[sys.argv[1]]()))
