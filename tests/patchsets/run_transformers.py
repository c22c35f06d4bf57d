"""Call the fused RoPE that verl_npu adds to Qwen2, and print how far it is off.

On PYTHONPATH: the stand-ins for a CPU and for torch_npu, and a tree with transformers. The output is one line of JSON.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch_npu


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
    print(json.dumps(rope()))
