"""Adaptation router-bias: the router's correction bias keeps its float32 values in the actor and in the rollout.

DeepSeek-V3 chooses experts by sigmoid(logits) + bias, which decides between scores that are close together
(DeepSeek-AI 2024, arXiv:2412.19437, 2.1.2). In bfloat16 a bias near 4 has steps of 1/64, and training moves it by
`moe_router_bias_update_rate`, 0.001, each step. With 256 random biases in [4, 4.1] and random scores half the tokens
get another set of experts in bfloat16, in [14, 14.1] five of six; DeepSeek-V3's own biases were not examined. They are
rounded in two places:

- The actor. Megatron-core casts the bias to bfloat16 with the rest of the model, and back to float32 only in the first
  forward (megatron/core/transformer/moe/router.py:131@core_v0.12.1): a checkpoint that is loaded in between is rounded.
  From core_v0.14.0 on Megatron-core casts it back before loading (router.py:473). MindSpeed-LLM v2.0.0 never casts it
  back (mindspeed_llm/core/transformer/moe/router.py:378; fae98b77 does, in v2.1.0).
- The rollout, whose parameter is bfloat16 (vllm_ascend/models/deepseek_v2.py:294@v0.9.1rc2,
  vllm/model_executor/models/deepseek_v2.py:118@v0.9.1; float32 since vllm-project/vllm#23640). It receives the biases
  closer to 0, where bfloat16 is finer, if one offset of all experts can bring them there; else as they are. The offset
  changes neither the top-k nor the order of the groups, whose sums of two all shift by the same amount. Groups are
  compared with each other, so they can't have offsets of their own.

The actor's token counter, `local_tokens_per_expert`, is bfloat16 too, in Megatron-core up to 0.16.1 and in
MindSpeed-LLM. It sums tokens over all micro batches of a step; then `get_updated_expert_bias` adds up all ranks,
compares each count with the mean and resets it. Above 256 bfloat16 can't represent every integer: in 256 micro batches
20,480 tokens were counted as 20,096, and two of eight biases stepped in the wrong direction. Float32 counts exactly up
to 2^24.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .switches import enabled
from .used import count

SLUG = "router-bias"

IN_ACTOR, IN_ROLLOUT = "expert_bias", ".e_score_correction_bias"
"""Megatron-core's buffer of a router, and the suffix of the tensor's name in a Hugging Face checkpoint."""

COUNTER = "local_tokens_per_expert"
"""Megatron-core's second buffer: the tokens that each expert received since the last update of the bias."""


def keep_float32(chunks: Iterable[Any]) -> None:
    """Cast the routers' bias and counter to float32, before a checkpoint is loaded into the bias.

    chunks: the model, one Module per virtual pipeline stage, after its cast to bfloat16.
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
    """Return the weights for the rollout, with each router's bias moved closer to 0 where that makes it finer.

    weights: pairs of checkpoint name and tensor on the device, read lazily. All others are unchanged.
    """
    return _without_offset(weights) if enabled(SLUG) else weights


def _without_offset(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, tensor in weights:
        if name.endswith(IN_ROLLOUT):
            count(SLUG)
            yield name, _near_zero(tensor.float())
        else:
            yield name, tensor


def _near_zero(bias: Any) -> Any:
    """Return the bias less one of its small entries if that makes bfloat16 finer, else as it is.

    That is so if the largest magnitude halves and no expert that can be chosen ends with a larger one than it had. The
    lowest eighth may be outliers, which would make all others coarse: they end below 0. A sigmoid is below 1, so an
    expert more than 1 below seven eighths of all can't be chosen, and its steps do not matter.

    An eighth, since some implementations give groups that are left out the score 0 and not -inf
    (vllm_ascend/ops/fused_moe.py:758@f20869e): the kept groups, half of DeepSeek-V3's 256 experts, need more entries at
    or above 0 than experts are chosen.
    """
    offset = bias.sort().values[bias.numel() // 8]
    moved = bias - offset
    is_coarser = (moved.abs() > bias.abs()) & (moved > -1)
    magnitude = max(offset.abs(), bias.max().abs())
    return moved if 2 * moved.max() <= magnitude and not is_coarser.any() else bias
