"""Adaptation router-bias: the router's correction bias keeps its float32 values in the actor and in the rollout.

DeepSeek-V3 chooses experts by sigmoid(logits) + bias, which decides between scores that are close together
(DeepSeek-AI 2024, arXiv:2412.19437, 2.1.2). In bfloat16 a bias near 4 has steps of 1/64, and training moves it by
`moe_router_bias_update_rate`, 0.001, each step. With 256 random biases in [4, 4.1] and random scores half the tokens
get another set of experts in bfloat16, in [14, 14.1] five of six; DeepSeek-V3's own biases were not looked at. Two
places round them:

- The actor. Megatron-core makes the bias bfloat16 with the rest of the model, and float32 again in the first forward
  only (megatron/core/transformer/moe/router.py:131@core_v0.12.1): a checkpoint that is loaded in between is rounded.
  From core_v0.14.0 on Megatron-core makes it float32 before loading (router.py:473). MindSpeed-LLM v2.0.0 never makes
  it float32 again (mindspeed_llm/core/transformer/moe/router.py:378; fae98b77 does, in v2.1.0).
- The rollout, whose parameter is bfloat16 (vllm_ascend/models/deepseek_v2.py:294@v0.9.1rc2,
  vllm/model_executor/models/deepseek_v2.py:118@v0.9.1; float32 since vllm-project/vllm#23640). It is sent
  bias - min(bias) instead: an offset that all experts have changes neither the top-k nor the order of the groups, each
  of whose sums of two shifts alike, and what is left is small enough for bfloat16 to tell apart. Not the mean: no
  entry may be negative, since some implementations mask groups by the score 0 rather than by -inf.

The actor's counter beside it, `local_tokens_per_expert`, is bfloat16 as well, in Megatron-core up to 0.16.1 and in
MindSpeed-LLM. It sums tokens over all micro batches of a step, after which `get_updated_expert_bias` adds those of all
ranks, compares each with the mean and sets it to zero; above 256 bfloat16 can't hold every whole number. Of 256 micro
batches 20,480 tokens were counted as 20,096, and two biases of eight stepped the wrong way. Float32 counts exactly up
to 2^24.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .switches import enabled
from .used import count

SLUG = "router-bias"

IN_ACTOR, IN_ROLLOUT = "expert_bias", ".e_score_correction_bias"
"""Megatron-core's buffer of a router, and how the tensor's name ends in a checkpoint of Hugging Face's."""

COUNTER = "local_tokens_per_expert"
"""Megatron-core's buffer beside it: the tokens that each expert got since the last update of the bias."""


def keep_float32(chunks: Iterable[Any]) -> None:
    """Make the routers' bias and counter float32 before a checkpoint is loaded into the bias.

    chunks: the model, one Module per virtual pipeline stage, just made bfloat16.
    """
    if not enabled(SLUG):
        return
    for chunk in chunks:
        for module in chunk.modules():
            bias = getattr(module, IN_ACTOR, None)
            if bias is not None:
                bias.data = bias.data.float()
                count(SLUG)
                counter = getattr(module, COUNTER, None)
                if counter is not None:
                    counter.data = counter.data.float()


def without_offset(weights: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Return the weights for the rollout: each bias less its smallest entry, in float32, all others unchanged.

    weights: names as in a checkpoint, tensors on the device; read as they come.
    """
    return _without_offset(weights) if enabled(SLUG) else weights


def _without_offset(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, tensor in weights:
        if name.endswith(IN_ROLLOUT):
            precise = tensor.float()
            count(SLUG)
            yield name, precise - precise.min()
        else:
            yield name, tensor
