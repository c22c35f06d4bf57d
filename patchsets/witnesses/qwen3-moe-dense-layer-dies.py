"""A dense layer of Qwen3-MoE raises a NameError under verl_npu's patch.

Called is Qwen3MoeMLP.forward (transformers/models/qwen3_moe/modeling_qwen3_moe.py@8365f70 with verl_npu 2.3.0's patch).
"off" is the largest difference to the formula.
"""

from __future__ import annotations

from typing import Any

import torch
from witness_common import by_the_formula, import_qwen3_moe, show

STAND_INS = ("npu",)


def main() -> dict[str, Any]:
    """Return the output of a dense layer and its difference from the formula's result."""
    modules, config = import_qwen3_moe()
    layer = modules.Qwen3MoeMLP(config)
    x = torch.randn(2, 3, 8)
    try:
        off = float((layer(x) - by_the_formula(layer, x)).abs().max())
    except NameError as error:
        return {"fault": True, "error": str(error)}
    return {"fault": off > 1e-5, "off": off}


if __name__ == "__main__":
    show(main)
