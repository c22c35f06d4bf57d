"""vllm-ascend's experts need VLLM_ENABLE_FIX_ROUTE; without it, int(None) fails in the first forward pass.

Called is AscendUnquantizedFusedMoEMethod.apply (vllm_ascend/ops/fused_moe.py@f20869e, of pull request 2058); what it
gives the chosen experts to, the computation of the experts, is made here. "chosen" has for the variable unset, 0 and 1
the experts of each token, or the error.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from witness_common import find_ascend, show

find_ascend()
from vllm_ascend.ops import fused_moe  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

EXPERTS, TOP = 4, 2
LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0], [0.0, 3.0, 2.0, 1.0]])


def chosen() -> Any:
    fused_moe.fused_experts = lambda **given: given["topk_ids"]
    state = SimpleNamespace(fused_moe_state=fused_moe.FusedMoEState.AllGather)
    fused_moe.get_forward_context = lambda: state
    method = fused_moe.AscendUnquantizedFusedMoEMethod.__new__(fused_moe.AscendUnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(method)
    layer = SimpleNamespace(w13_weight=None, w2_weight=None)
    try:
        ids = method.apply(layer, torch.zeros(3, 8), LOGITS, TOP, True, global_num_experts=EXPERTS)
    except TypeError as error:
        return str(error)
    return ids.tolist()


def main() -> dict[str, Any]:
    found = {}
    for value in (None, "0", "1"):
        os.environ.pop("VLLM_ENABLE_FIX_ROUTE", None)
        if value is not None:
            os.environ["VLLM_ENABLE_FIX_ROUTE"] = value
        found[value or "unset"] = chosen()
    return {"fault": isinstance(found["unset"], str), "chosen": found}


if __name__ == "__main__":
    show(main)
