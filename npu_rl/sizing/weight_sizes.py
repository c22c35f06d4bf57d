"""Parameters by component: of the whole model, of one die's share in training, and of one in the rollout.

Training follows Megatron-core 0.12.1: column- and row-parallel projections are divided by the tensor size, norms and
the router are not, experts by the expert and expert tensor sizes (megatron/core/models/gpt/gpt_layer_specs.py,
megatron/core/transformer/{multi_latent_attention,moe/experts}.py). The rollout follows vLLM 0.9.1's DeepSeek-V2
(vllm/model_executor/models/deepseek_v2.py): the latent down-projections and the router are whole on every die.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from npu_rl.sizing.model_config import ModelConfig

Counts = Counter[str]  # component -> parameters

ATTENTION, EXPERTS, SHARED, ROUTER, DENSE = "attention", "experts", "shared experts", "router", "dense layers"
NORMS, EMBEDDING, HEAD = "norms", "embedding", "head"


@dataclass(frozen=True)
class Share:
    """Over how many dies each kind of parameter is divided. latent_down: the latent down-projections. vocabulary: the
    table of words is padded to a multiple of it.
    """

    tensor: int = 1
    latent_down: int = 1
    experts: int = 1
    expert_tensor: int = 1
    vocabulary: int = 1


def training_share(tensor: int, expert: int, expert_tensor: int) -> Share:
    """One die's share in training. Tensor parallel ranks divide the down-projections too (core 0.12.1)."""
    return Share(tensor=tensor, latent_down=tensor, experts=expert, expert_tensor=expert_tensor)


def rollout_share(tensor: int, expert: int) -> Share:
    """One die's share in the engine; expert: dies that divide the experts, 1 with the tensor ranks alone.

    vLLM pads the words to multiples of 64 (vllm/model_executor/layers/vocab_parallel_embedding.py:22@v0.9.1).
    """
    return Share(tensor=tensor, experts=expert, expert_tensor=1 if expert > 1 else tensor, vocabulary=64)


WHOLE = Share()


def layer(shape: ModelConfig, number: int, share: Share = WHOLE) -> Counts:
    """Parameters of layer `number`, from 0."""
    counts = _latent(shape, share) if shape.latent else _attention(shape, share)
    counts[NORMS] += 2 * shape.hidden
    if shape.is_dense(number):
        counts[DENSE] += 3 * shape.hidden * shape.feed_forward // share.tensor
        return counts
    one = 3 * shape.hidden * shape.expert_width
    counts[EXPERTS] += shape.experts // share.experts * one // share.expert_tensor
    counts[SHARED] += 3 * shape.hidden * shape.shared_width // share.tensor
    counts[ROUTER] += (shape.experts + shape.shared_gate) * shape.hidden
    return counts


def stage(
    shape: ModelConfig,
    layers: range,
    share: Share = WHOLE,
    *,
    first: bool | None = None,
    last: bool | None = None,
) -> Counts:
    """Parameters of a pipeline stage: its layers, the embedding before the first, norm and head after the last.

    first, last: whether it is that stage, where a stage may have no layers; else its layers say it.
    """
    first = layers.start == 0 if first is None else first
    last = layers.stop == shape.layers if last is None else last
    counts: Counts = Counter()
    for dense, times in Counter(map(shape.is_dense, layers)).items():
        number = next(number for number in layers if shape.is_dense(number) is dense)
        counts += Counter({part: times * count for part, count in layer(shape, number, share).items()})
    rows = -(-shape.vocabulary // share.vocabulary) * share.vocabulary
    words = rows * shape.hidden // share.tensor
    if first:
        counts[EMBEDDING] += words
    if last:
        counts[NORMS] += shape.hidden
    if last and not (shape.tied and first):
        counts[HEAD] += words  # Megatron keeps a copy of tied embeddings on the last stage
    return counts


def whole(shape: ModelConfig) -> Counts:
    """Parameters of the whole model, each once."""
    return stage(shape, range(shape.layers))


def routing_biases(shape: ModelConfig) -> int:
    """Values that steer the router and are no parameters (e_score_correction_bias): one per expert and layer."""
    return shape.experts * max(0, shape.layers - shape.dense)


def stage_ranges(stage_layers: tuple[int, ...]) -> list[range]:
    """The layers of each stage, counted through."""
    ranges, begin = [], 0
    for count in stage_layers:
        ranges.append(range(begin, begin + count))
        begin += count
    return ranges


def cache_per_token(shape: ModelConfig, tensor: int, size: int = 2) -> int:
    """Bytes one token takes in a die's KV cache; the latent one is whole on every tensor rank."""
    if shape.latent:
        return (shape.latent.cache_rank + shape.latent.rotary) * shape.layers * size
    return 2 * max(1, shape.kv_heads // tensor) * shape.head * shape.layers * size


def derived_of_latent(shape: ModelConfig, tensor: int) -> int:
    """Elements of the tensors the engine makes of kv_b_proj beside it (W_UV and W_UK_T)."""
    if shape.latent is None:
        return 0
    return shape.layers * _key_value_up(shape) // tensor


def _key_value_up(shape: ModelConfig) -> int:
    latent = shape.latent
    assert latent is not None
    return latent.cache_rank * shape.heads * (latent.plain + latent.value)


def _latent(shape: ModelConfig, share: Share) -> Counts:
    latent = shape.latent
    assert latent is not None
    queries = shape.heads * (latent.plain + latent.rotary)
    down = shape.hidden * (latent.cache_rank + latent.rotary)
    up = _key_value_up(shape) + shape.heads * latent.value * shape.hidden
    norms = latent.cache_rank
    if latent.query_rank is None:
        up += shape.hidden * queries
    else:
        down += shape.hidden * latent.query_rank
        up += latent.query_rank * queries
        norms += latent.query_rank
    return Counter({ATTENTION: down // share.latent_down + up // share.tensor, NORMS: norms})


def _attention(shape: ModelConfig, share: Share) -> Counts:
    """Where ranks outnumber key-value heads, each has one of its own (QKVParallelLinear, vllm@v0.9.1)."""
    width, narrow = shape.heads * shape.head, shape.kv_heads * shape.head
    keys = 2 * narrow // min(share.tensor, max(1, shape.kv_heads))
    count = 2 * shape.hidden * width // share.tensor + shape.hidden * keys
    if shape.query_bias:
        count += width // share.tensor + keys
    if shape.output_bias:
        count += shape.hidden
    return Counter({ATTENTION: count, NORMS: 2 * shape.head if shape.query_norm else 0})
