"""Parameter counts by component, of the whole model and on one die in training and rollout.

Training follows Megatron-core 0.12.1: column- and row-parallel projections are divided by the tensor size, norms and
the router are not, experts by the expert and expert tensor sizes (megatron/core/models/gpt/gpt_layer_specs.py,
megatron/core/transformer/{multi_latent_attention,moe/experts}.py). The rollout follows vLLM 0.9.1's DeepSeek-V2
(vllm/model_executor/models/deepseek_v2.py): the latent down-projections and the router are whole on every die.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from npu_rl.recipes.sizing.model_config import ModelConfig

Counts = Counter[str]  # component -> parameters

ATTENTION, EXPERTS, SHARED, ROUTER, DENSE = "attention", "experts", "shared experts", "router", "dense layers"
NORMS, EMBEDDING, HEAD = "norms", "embedding", "head"


@dataclass(frozen=True)
class WeightShare:
    """The number of dies that divide each kind of parameter.

    Attributes:
        latent_down: The latent down-projections.
        vocabulary: The embedding's rows are padded to a multiple of this.
    """

    tensor: int = 1
    latent_down: int = 1
    experts: int = 1
    expert_tensor: int = 1
    vocabulary: int = 1


def training_share(tensor: int, expert: int, expert_tensor: int) -> WeightShare:
    """Return one die's share in training. Tensor ranks also divide the down-projections (core 0.12.1)."""
    return WeightShare(tensor=tensor, latent_down=tensor, experts=expert, expert_tensor=expert_tensor)


def rollout_share(tensor: int, expert: int, data: int = 1) -> WeightShare:
    """Return one die's share in the engine.

    vLLM pads the vocabulary to multiples of 64 (vllm/model_executor/layers/vocab_parallel_embedding.py:22@v0.9.1).

    Args:
        tensor: Tensor parallel size.
        expert: Dies that divide whole experts; 1 if the tensor ranks divide each expert.
        data: Data parallel size, whose ranks divide each expert, too (FusedMoEParallelConfig.make,
            vllm/model_executor/layers/fused_moe/config.py@v0.18.0).
    """
    inner = 1 if expert > 1 else tensor * data
    return WeightShare(tensor=tensor, experts=expert, expert_tensor=inner, vocabulary=64)


WHOLE = WeightShare()


def layer(shape: ModelConfig, number: int, share: WeightShare = WHOLE) -> Counts:
    """Return the parameters of layer `number`, from 0."""
    counts = _latent_attention(shape, share) if shape.latent else _attention(shape, share)
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
    share: WeightShare = WHOLE,
    *,
    first: bool | None = None,
    last: bool | None = None,
) -> Counts:
    """Return the parameters of a pipeline stage.

    The embedding comes before the first layer, norm and head after the last one.

    Args:
        shape: The model.
        layers: The stage's layers.
        share: One die's share.
        first: Whether it is the first stage; None derives it from the layers, of which a stage may have none.
        last: Whether it is the last stage; None derives it from the layers.
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


def count_parameters(shape: ModelConfig) -> Counts:
    """Return the parameters of the whole model, each counted once."""
    return stage(shape, range(shape.layers))


def routing_biases(shape: ModelConfig) -> int:
    """Return the number of e_score_correction_bias values, which are not parameters: one per expert and layer."""
    return shape.experts * max(0, shape.layers - shape.dense)


def stage_ranges(stage_layers: tuple[int, ...]) -> list[range]:
    """Return the layers of each stage as consecutive ranges."""
    ranges, begin = [], 0
    for count in stage_layers:
        ranges.append(range(begin, begin + count))
        begin += count
    return ranges


def cache_per_token(shape: ModelConfig, tensor: int, size: int = 2) -> int:
    """Return the bytes per token in a die's KV cache. Every tensor rank has the whole latent cache."""
    if shape.latent:
        return (shape.latent.cache_rank + shape.latent.rope_dim) * shape.layers * size
    return 2 * max(1, shape.kv_heads // tensor) * shape.head_dim * shape.layers * size


def absorbed_projections(shape: ModelConfig, tensor: int) -> int:
    """Return the elements of W_UV and W_UK_T, which the engine makes from kv_b_proj and keeps beside it."""
    if shape.latent is None:
        return 0
    return shape.layers * _kv_up_projection(shape) // tensor


def _kv_up_projection(shape: ModelConfig) -> int:
    latent = shape.latent
    assert latent is not None
    return latent.cache_rank * shape.heads * (latent.nope_dim + latent.value_dim)


def _latent_attention(shape: ModelConfig, share: WeightShare) -> Counts:
    latent = shape.latent
    assert latent is not None
    queries = shape.heads * (latent.nope_dim + latent.rope_dim)
    down = shape.hidden * (latent.cache_rank + latent.rope_dim)
    up = _kv_up_projection(shape) + shape.heads * latent.value_dim * shape.hidden
    norms = latent.cache_rank
    if latent.query_rank is None:
        up += shape.hidden * queries
    else:
        down += shape.hidden * latent.query_rank
        up += latent.query_rank * queries
        norms += latent.query_rank
    return Counter({ATTENTION: down // share.latent_down + up // share.tensor, NORMS: norms})


def _attention(shape: ModelConfig, share: WeightShare) -> Counts:
    """Return attention's parameters. Ranks beyond the KV heads hold copies (QKVParallelLinear, vllm@v0.9.1)."""
    width, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    keys = 2 * narrow // min(share.tensor, max(1, shape.kv_heads))
    count = 2 * shape.hidden * width // share.tensor + shape.hidden * keys
    if shape.query_bias:
        count += width // share.tensor + keys
    if shape.output_bias:
        count += shape.hidden
    return Counter({ATTENTION: count, NORMS: 2 * shape.head_dim if shape.query_norm else 0})
