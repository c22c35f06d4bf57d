"""Run the top-k and top-p filter that VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1 puts in place of vLLM's.

At f20869ef `topk_topp_forward_native` passes (logits, k, p) to a function that takes (logits, p, k), until vllm-ascend
734eb68129 (#1920): k becomes int(0.9) = 0, an index out of bounds, and p becomes 50, which filters nothing. The fault
is shown with the values of the published recipe, top_k 50 and top_p 0.9, on a vocabulary of DeepSeek-V3's size.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE"] = "1"

import torch
import torch_npu
from witness_common import find_ascend

find_ascend()
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p  # noqa: E402
from vllm_ascend.patch.worker.patch_common import patch_sampler  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

ROWS, VOCABULARY, K, P = 8, 129280, 50, 0.9
kept: list[torch.Tensor] = []


def sample(probs: torch.Tensor, generators: dict[int, Any]) -> torch.Tensor:
    kept.append(probs > 0)
    return probs.argmax(-1)


def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Stand in for torch_npu's operator (called by 734eb68129), which has no CPU version; documented arguments."""
    return apply_top_k_top_p(logits, k, p)


torch_npu.npu_top_k_top_p = npu_top_k_top_p
patch_sampler.random_sample = sample
torch.manual_seed(0)
logits = 3 * torch.randn(ROWS, VOCABULARY)
k, p = torch.full((ROWS,), K), torch.full((ROWS,), P)
of_vllm = (apply_top_k_top_p(logits.clone(), k, p) > -torch.inf).sum(-1)
figures: dict[str, Any] = {"tokens kept by vLLM": of_vllm.tolist()}
try:
    patch_sampler.topk_topp_forward_native(None, logits.clone(), {}, k, p)
    count = kept[0].sum(-1)
    figures |= {"tokens kept": count.tolist(), "fault": bool(count.max() > K)}
except (IndexError, RuntimeError) as error:
    if type(error) not in (IndexError, RuntimeError):  # not torch's own, so not of the index
        raise
    figures |= {"error": str(error), "fault": True}
print(json.dumps(figures))
