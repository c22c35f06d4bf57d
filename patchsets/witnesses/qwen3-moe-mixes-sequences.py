"""Under verl_npu's patch, Qwen3-MoE's experts return b sequences of s tokens as one sequence of b * s.

Called is Qwen3MoeSparseMoeBlock.forward (transformers/models/qwen3_moe/modeling_qwen3_moe.py@8365f70 with verl_npu
2.3.0's patch), forward and backward, on two sequences of three tokens, and on two of one token with the residual, as a
decoder layer adds it. "off" is the largest difference to each token's own two experts, "sum off" that of the sum.
"""

from __future__ import annotations

from typing import Any

import torch
from witness_common import by_the_formula, import_qwen3_moe, show

STAND_INS = ("npu",)


def main() -> dict[str, Any]:
    """Compare the experts on two sequences of three tokens, forward and backward, with each token's own experts."""
    modules, config = import_qwen3_moe()
    block = modules.Qwen3MoeSparseMoeBlock(config)
    x = torch.randn(2, 3, 8)
    given, own = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, _ = block(given)
    shares, chosen = block.gate(own.view(-1, 8)).softmax(-1).topk(2, -1)
    shares = shares / shares.sum(-1, keepdim=True)
    rows = [
        sum(share * by_the_formula(block.experts[index], token) for share, index in zip(*pair, strict=True))
        for token, *pair in zip(own.view(-1, 8), shares, chosen.tolist(), strict=True)
    ]
    expected = torch.stack(rows)
    (output.reshape(-1, 8) * torch.arange(8.0)).sum().backward()
    (expected * torch.arange(8.0)).sum().backward()
    assert given.grad is not None and own.grad is not None
    return {
        "fault": output.shape != x.shape,
        "shape": list(output.shape),
        "off": float((output.reshape(-1, 8) - expected).abs().max()),
        "gradient off": float((given.grad - own.grad).abs().max()),
    }


if __name__ == "__main__":
    show(main)
