"""The fused RoPE that verl_npu 2.3.0 adds to Qwen2 calls a method that no tensor has.

Called is fused_apply_rotary_pos_emb of transformers/models/qwen2/modeling_qwen2.py@8365f70 after verl_npu's patch;
"off" is how far its result is from that of transformers' own function.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from witness_common import show

STAND_INS = ("npu",)


def main() -> dict[str, Any]:
    from transformers.models.qwen2 import modeling_qwen2 as module

    module.torch_npu = torch_npu
    q, k, cos, sin = (torch.randn(2, *shape, 4) for shape in ((3, 5), (1, 5), (5,), (5,)))
    try:
        fused = module.fused_apply_rotary_pos_emb(q, k, cos, sin)
    except AttributeError as error:
        return {"fault": True, "error": str(error)}
    own = module.apply_rotary_pos_emb(q, k, cos, sin)
    off = max(float((one - other).abs().max()) for one, other in zip(fused, own, strict=True))
    return {"fault": off > 1e-5, "off": off}


if __name__ == "__main__":
    show(main)
