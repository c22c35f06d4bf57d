"""Activations and logits of one micro batch: what a layer keeps for its backward pass, what a forward pass needs.

Activations are estimates: bf16, fused attention, tokens spread evenly over the experts. Logits are counted as verl's
code makes them (55e3c5b), for sequences as long as the recipe allows: an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.sizing.model_config import ModelConfig

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
class Spread:
    """Over how many ranks a micro batch's work is divided. sequence_parallel: norms and dispatch by tensor, too."""

    tensor: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = True

    @property
    def rows(self) -> int:
        """Ranks that divide the tokens of the hidden states."""
        return self.tensor if self.sequence_parallel else 1


@dataclass(frozen=True)
class Recompute:
    """Megatron's recomputation. granularity: full, selective or None; method: uniform, block or None.

    layers: of a uniform chunk, or of those that block computes again, where 0 or less is none of them; None: not set.
    """

    granularity: str | None = None
    method: str | None = None
    layers: int | None = None
    modules: tuple[str, ...] = ("core_attn",)


def kept_for_backward(shape: ModelConfig, layers: range, tokens: int, spread: Spread, how: Recompute) -> int:
    """Bytes that the layers of a stage keep of one micro batch until its backward pass.

    Full recomputation keeps the input of each chunk of `how.layers` layers (uniform), or the inputs of the first
    `how.layers` layers and all of the others (block): megatron/core/transformer/transformer_block.py:372@core_v0.12.1.
    """
    each = tokens // spread.rows * shape.hidden * _BF16
    if how.granularity != "full":
        return sum(_kept(shape, number, tokens, spread, how) for number in layers)
    if how.method == "block":
        again = _again(layers, how)
        rest = layers[again:]
        return again * each + sum(_kept(shape, number, tokens, spread, how) for number in rest)
    return -(-len(layers) // max(1, how.layers or 1)) * each


def working_set(shape: ModelConfig, layers: range, tokens: int, spread: Spread, how: Recompute) -> int:
    """Bytes of what is computed again at once in the backward pass; 0 without full recomputation."""
    if how.granularity != "full" or (how.method == "block" and not _again(layers, how)):
        return 0
    together = max(1, how.layers or 1) if how.method != "block" else 1
    sizes = sorted((_kept(shape, number, tokens, spread, how) for number in layers), reverse=True)
    return sum(sizes[:together])


def forward_peak(shape: ModelConfig, tokens: int, spread: Spread) -> int:
    """Bytes that a forward pass without gradients needs at once: one layer's attention or its experts."""
    hidden = 2 * tokens * shape.hidden
    attention = tokens * _attention(shape, spread)
    last = shape.layers - 1  # a layer with experts, where there are any
    return _BF16 * (hidden + max(attention, _feed_forward(shape, last, tokens, spread)))


def _again(layers: range, how: Recompute) -> int:
    """Layers that `block` computes again (transformer_block.py:397@core_v0.12.1)."""
    return len(layers) if how.layers is None else min(max(0, how.layers), len(layers))


def _kept(shape: ModelConfig, number: int, tokens: int, spread: Spread, how: Recompute) -> int:
    elements = 4 * tokens // spread.rows * shape.hidden + tokens * _attention(shape, spread)
    part = "mlp" if shape.is_dense(number) else "moe"
    if how.granularity != "selective" or part not in how.modules:
        elements += _feed_forward(shape, number, tokens, spread)
    return _BF16 * elements


def _attention(shape: ModelConfig, spread: Spread) -> int:
    """Elements a token: queries, keys, values as projected and as used, and the output."""
    if shape.latent is None:
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return (3 * queries + 3 * keys) // spread.tensor
    latent = shape.latent
    head = latent.nope_dim + latent.rope_dim
    down = (latent.query_rank or 0) + latent.cache_rank + latent.rope_dim
    return down + shape.heads * (2 * head + latent.nope_dim + 2 * latent.value_dim) // spread.tensor


def _feed_forward(shape: ModelConfig, number: int, tokens: int, spread: Spread) -> int:
    """Elements of all tokens. With experts: each token's rows sent and returned, gate, up and their product."""
    if shape.is_dense(number):
        return tokens * 3 * shape.feed_forward // spread.tensor
    routed = 2 * shape.hidden * spread.expert_tensor + 3 * shape.expert_width
    shared = 3 * shape.shared_width // spread.tensor
    return tokens // spread.rows * shape.experts_per_token * routed + tokens * shared
