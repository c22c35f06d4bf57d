"""Count the tokens left by top-k and top-p in vLLM, and in vllm-ascend's filter with the right argument order.

vLLM takes top-p of the distribution that top-k has left; the filter of VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1 takes it of
the whole one, whose smallest probabilities top-k has discarded already: top-p does next to nothing there. Where
torch_npu.npu_top_k_top_p is called instead (since vllm-ascend 734eb68129) this can't be seen on a CPU.
"""

from __future__ import annotations

import inspect
import json

import torch
from witness_common import find_ascend

find_ascend()
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p  # noqa: E402
from vllm_ascend.patch.worker.patch_common import patch_sampler  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

ROWS, VOCABULARY, K, P = 8, 129280, 50, 0.9
own = getattr(patch_sampler, "_apply_top_k_top_p", None) or patch_sampler.apply_top_k_top_p
torch.manual_seed(0)
logits = 3 * torch.randn(ROWS, VOCABULARY)
given = {"logits": logits.clone(), "k": torch.full((ROWS,), K), "p": torch.full((ROWS,), P)}
assert set(given) == set(inspect.signature(own).parameters)
of_vllm = (apply_top_k_top_p(logits.clone(), given["k"], given["p"]) > -torch.inf).sum(-1)
found = (own(**given) > -torch.inf).sum(-1)
figures = {"tokens kept by vLLM": of_vllm.tolist(), "tokens kept": found.tolist()}
print(json.dumps({"fault": figures["tokens kept"] != figures["tokens kept by vLLM"], **figures}))
