"""A dense layer of Qwen3-MoE dies of a NameError under verl_npu's patch.

Called is Qwen3MoeMLP.forward (transformers/models/qwen3_moe/modeling_qwen3_moe.py@8365f70 with verl_npu 2.3.0's patch).
"off" is the largest difference to the formula.
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
    """The output of a dense layer, and how far it is from the formula's."""
    module = _qwen3_moe()
    layer = module.Qwen3MoeMLP(module.Qwen3MoeConfig(**CONFIG))
    x = torch.randn(2, 3, 8)
    try:
        return {"off": float((layer(x) - _dense(layer, x)).abs().max())}
    except NameError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    found = main()
    print(json.dumps({"fault": "error" in found or found["off"] > 1e-5, **found}))
