"""Activations and logits of one micro batch, kept for the backward pass or used in a forward pass.

Activations are estimates: bf16, fused attention, tokens spread evenly over the experts. Logits are counted as verl's
code computes them (55e3c5b), for the longest sequences that the recipe allows: an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npu_rl.recipes.sizing.model_config import ModelConfig

_BF16 = 2

# Bytes that one token takes for each word of the vocabulary.
MEGATRON_LOGITS = {
    # output layer bf16 (2), Float16Module's float() of it (4); vocab_parallel_cross_entropy then works in place
    # (megatron/core/transformer/module.py:180, tensor_parallel/cross_entropy.py:31@core_v0.12.1)
    "plain": 6,
    # float (4), its clone (4), softmax (4) and a product (4) of vocab_parallel_entropy
    # (verl/workers/actor/megatron_actor.py:517, verl/utils/megatron/tensor_parallel.py:113@55e3c5b)
    "entropy": 16,
    # the same with the sum of both gradients, and its bf16 copy
    "entropy-backward": 18,
}
FSDP_LOGITS = {
    # bf16 logits and the log-softmax that npu_cross_entropy_loss returns (verl/utils/torch_functional.py:106@55e3c5b)
    "plain": 4,
    # and the gradient
    "backward": 6,
    # softmax, product and a copy in fp32 under autocast (entropy_from_logits, torch_functional.py:145@55e3c5b)
    "entropy": 16,
    "entropy-backward": 18,
}


@dataclass(frozen=True)
class WorkSplit:
    """The ranks that divide the work of a micro batch.

    Attributes:
        tensor: Tensor parallel size.
        expert_tensor: Tensor parallel size of the experts.
        sequence_parallel: Whether tensor ranks also divide norms and dispatch.
    """

    tensor: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = True

    @property
    def rows(self) -> int:
        """The number of ranks that divide the hidden states' tokens."""
        return self.tensor if self.sequence_parallel else 1


@dataclass(frozen=True)
class ZeroMemory:
    """MindSpeed's moe_zero_memory: activations of expert layers that are freed and recomputed.

    Level 0 keeps of each row that an expert gets gate and up, and of a shared expert the same; level 1 keeps neither
    (mindspeed/core/transformer/moe/moe_feature/overlap/{moe_common,grouped_mlp_with_comp_and_comm_overlap_all2all,
    token_dispatcher}.py@e4772499).

    Attributes:
        level: 0 or 1.
        layers: The first layers of each chunk that level 1 is for; None or 0 for all. Level 0 is for the others.
        chunk: num_layers // pipeline size, whatever the stages have (moe_common.py:315@e4772499).
    """

    level: int
    layers: int | None
    chunk: int

    def level_of(self, number: int) -> int:
        """Return the level of layer `number`, from 0."""
        beyond = self.layers and number % max(1, self.chunk) >= self.layers
        return 0 if self.level == 0 or beyond else 1


@dataclass(frozen=True)
class Recompute:
    """Megatron's recomputation.

    Attributes:
        granularity: full, selective or None.
        method: uniform, block or None.
        layers: Layers of a uniform chunk, or those that block recomputes, where 0 or less is none; None if it isn't
            set.
        modules: The modules that selective recomputes.
        experts: What MindSpeed's moe_zero_memory frees of layers with experts.
    """

    granularity: str | None = None
    method: str | None = None
    layers: int | None = None
    modules: tuple[str, ...] = ("core_attn",)
    experts: ZeroMemory | None = None


def kept_for_backward(
    shape: ModelConfig, layers: range, tokens: int, split: WorkSplit, recompute: Recompute
) -> int:
    """Return the bytes that a stage's layers keep for one micro batch until its backward pass.

    Full recomputation keeps the input of each chunk of `recompute.layers` layers (uniform), or the inputs of the
    first `recompute.layers` layers and all activations of the others (block). Source:
    megatron/core/transformer/transformer_block.py:372@core_v0.12.1.
    """
    each = tokens // split.rows * shape.hidden * _BF16
    if recompute.granularity != "full":
        return sum(_layer_activations(shape, number, tokens, split, recompute) for number in layers)
    if recompute.method == "block":
        recomputed = _recomputed_layers(layers, recompute)
        kept = (_layer_activations(shape, one, tokens, split, recompute) for one in layers[recomputed:])
        return recomputed * each + sum(kept)
    return -(-len(layers) // max(1, recompute.layers or 1)) * each


def working_set(
    shape: ModelConfig, layers: range, tokens: int, split: WorkSplit, recompute: Recompute
) -> int:
    """Return the bytes recomputed at one time in the backward pass; 0 without recomputation."""
    by_block = recompute.method == "block"
    if recompute.granularity != "full" or (by_block and not _recomputed_layers(layers, recompute)):
        return _freed_of_a_layer(shape, layers, tokens, split, recompute)
    recompute = replace(recompute, experts=None)  # in its backward pass a layer needs all of it
    together = 1 if by_block else max(1, recompute.layers or 1)
    sizes = (_layer_activations(shape, number, tokens, split, recompute) for number in layers)
    return sum(sorted(sizes, reverse=True)[:together])


def forward_peak(shape: ModelConfig, tokens: int, split: WorkSplit) -> int:
    """Return the peak bytes of a forward pass without gradients, in the attention or experts of one layer."""
    hidden = 2 * tokens * shape.hidden
    attention = tokens * _attention_elements(shape, split)
    last = shape.layers - 1  # a layer with experts, where there are any
    return _BF16 * (hidden + max(attention, _feed_forward_elements(shape, last, tokens, split)))


def _recomputed_layers(layers: range, recompute: Recompute) -> int:
    """Return the number of layers that `block` recomputes (transformer_block.py:397@core_v0.12.1)."""
    return len(layers) if recompute.layers is None else min(max(0, recompute.layers), len(layers))


def _freed_of_a_layer(
    shape: ModelConfig, layers: range, tokens: int, split: WorkSplit, recompute: Recompute
) -> int:
    """Return the most bytes that a layer's experts recompute in its backward pass."""
    if recompute.experts is None:
        return 0
    whole = replace(recompute, experts=None)
    freed = (
        _layer_activations(shape, number, tokens, split, whole)
        - _layer_activations(shape, number, tokens, split, recompute)
        for number in layers
    )
    return max(freed, default=0)


def _layer_activations(
    shape: ModelConfig, number: int, tokens: int, split: WorkSplit, recompute: Recompute
) -> int:
    elements = 4 * tokens // split.rows * shape.hidden + tokens * _attention_elements(shape, split)
    part = "mlp" if shape.is_dense(number) else "moe"
    if recompute.granularity != "selective" or part not in recompute.modules:
        if recompute.experts is None or shape.is_dense(number):
            elements += _feed_forward_elements(shape, number, tokens, split)
        elif recompute.experts.level_of(number) == 0:
            elements += _gate_and_up_elements(shape, tokens, split)
    return _BF16 * elements


def _attention_elements(shape: ModelConfig, split: WorkSplit) -> int:
    """Return the elements per token: queries, keys and values as projected and as used, and the output."""
    if shape.latent is None:
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return (3 * queries + 3 * keys) // split.tensor
    latent = shape.latent
    head = latent.nope_dim + latent.rope_dim
    down = (latent.query_rank or 0) + latent.cache_rank + latent.rope_dim
    return down + shape.heads * (2 * head + latent.nope_dim + 2 * latent.value_dim) // split.tensor


def _feed_forward_elements(shape: ModelConfig, number: int, tokens: int, split: WorkSplit) -> int:
    """Return the elements of a layer's feed-forward part for all tokens.

    With experts these are each token's rows sent and returned, gate, up and their product.
    """
    if shape.is_dense(number):
        return tokens * 3 * shape.feed_forward // split.tensor
    routed = 2 * shape.hidden * split.expert_tensor + 3 * shape.expert_width
    shared = 3 * shape.shared_width // split.tensor
    return tokens // split.rows * shape.experts_per_token * routed + tokens * shared


def _gate_and_up_elements(shape: ModelConfig, tokens: int, split: WorkSplit) -> int:
    routed = tokens // split.rows * shape.experts_per_token * 2 * shape.expert_width
    return routed + tokens * (2 * shape.shared_width // split.tensor)
