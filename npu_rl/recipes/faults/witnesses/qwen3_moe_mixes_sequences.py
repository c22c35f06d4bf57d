"""Qwen3-MoE's experts return a batch of b sequences as one of b * s tokens under verl_npu's patch.

Called is Qwen3MoeSparseMoeBlock.forward (transformers/models/qwen3_moe/modeling_qwen3_moe.py@8365f70 with verl_npu
2.3.0's patch), forward and backward, on two sequences of three tokens, and on two of one token with the residual, as a
decoder layer adds it. "off" is the largest difference to each token's own two experts, "sum off" that of the sum.
"""

from __future__ import annotations

import json
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


def _qwen3_moe() -> Any:
    from transformers.models.qwen3_moe import modeling_qwen3_moe as module

    module.torch_npu = torch_npu  # imported there where there is an NPU
    torch.manual_seed(1)
    return module


def _dense(layer: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layer.down_proj(F.silu(layer.gate_proj(x)) * layer.up_proj(x))
    return result


def main() -> dict[str, Any]:
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


if __name__ == "__main__":
    found = main()
    print(json.dumps({"fault": found["shape"] != [2, 3, 8], **found}))
