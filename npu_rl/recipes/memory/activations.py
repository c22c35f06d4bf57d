"""Activations of one micro batch, kept for the backward pass or used in a forward pass.

They are estimates: bf16, fused attention, tokens spread evenly over the experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from npu_rl.recipes.sizing.model_config import ModelConfig

_BF16 = 2


@dataclass(frozen=True)
class Recompute:
    """Megatron's recomputation.

    Attributes:
        granularity: full, selective or None.
        method: uniform, block or None.
        layers: Layers of a uniform chunk, or those that block recomputes, where 0 or less is none; None if it isn't
            set.
        modules: The modules that selective recomputes.
        zero_memory: MindSpeed's moe_zero_memory by layer; empty without. Level 0 keeps of each row that an expert gets
            gate and up, and of a shared expert the same; level 1 keeps neither
            (mindspeed/core/transformer/moe/moe_feature/overlap/{moe_common,grouped_mlp_with_comp_and_comm_overlap_
            all2all,token_dispatcher}.py@e4772499).
    """

    granularity: str | None = None
    method: str | None = None
    layers: int | None = None
    modules: tuple[str, ...] = ("core_attn",)
    zero_memory: tuple[int, ...] = ()


@dataclass(frozen=True)
class Activations:
    """Activations of a model's layers on a die, in bytes.

    Attributes:
        tensor: Tensor parallel size.
        expert_tensor: Tensor parallel size of the experts.
        sequence_parallel: Whether tensor ranks also divide norms and dispatch.
    """

    shape: ModelConfig
    tensor: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False
    recompute: Recompute = field(default_factory=Recompute)

    def kept(self, layers: range, tokens: int) -> int:
        """Return the bytes that a stage's layers keep for one micro batch until its backward pass.

        Full recomputation keeps the input of each chunk of `recompute.layers` layers (uniform), or the inputs of the
        first `recompute.layers` layers and all activations of the others (block). Source:
        megatron/core/transformer/transformer_block.py:372@core_v0.12.1.
        """
        each = self._rows(tokens) * self.shape.hidden * _BF16
        if self.recompute.granularity != "full":
            return sum(self._layer(number, tokens) for number in layers)
        if self.recompute.method == "block":
            recomputed = self._recomputed(layers)
            return recomputed * each + sum(self._layer(one, tokens) for one in layers[recomputed:])
        return -(-len(layers) // max(1, self.recompute.layers or 1)) * each

    def working_set(self, layers: range, tokens: int) -> int:
        """Return the bytes recomputed at one time in the backward pass; 0 without recomputation."""
        whole = [self._layer(number, tokens, whole=True) for number in layers]
        by_block = self.recompute.method == "block"
        if self.recompute.granularity != "full" or (by_block and not self._recomputed(layers)):
            freed = (size - self._layer(number, tokens) for number, size in zip(layers, whole, strict=True))
            return max(freed, default=0)
        together = 1 if by_block else max(1, self.recompute.layers or 1)
        return sum(sorted(whole, reverse=True)[:together])

    def forward_peak(self, tokens: int) -> int:
        """Return the peak bytes of a forward pass without gradients, in the attention or experts of one layer."""
        last = self.shape.layers - 1  # a layer with experts, where there are any
        largest = max(tokens * self._attention(), self._feed_forward(last, tokens))
        return _BF16 * (2 * tokens * self.shape.hidden + largest)

    def _rows(self, tokens: int) -> int:
        """Return the tokens whose hidden states a rank has."""
        return tokens // (self.tensor if self.sequence_parallel else 1)

    def _recomputed(self, layers: range) -> int:
        """Return the number of layers that `block` recomputes (transformer_block.py:397@core_v0.12.1)."""
        given = self.recompute.layers
        return len(layers) if given is None else min(max(0, given), len(layers))

    def _layer(self, number: int, tokens: int, *, whole: bool = False) -> int:
        """Return the bytes of a layer; with `whole` those that moe_zero_memory frees, too."""
        rows, dense, recompute = self._rows(tokens), self.shape.is_dense(number), self.recompute
        elements = self._rows(4 * tokens) * self.shape.hidden + tokens * self._attention()
        if recompute.granularity == "selective" and ("mlp" if dense else "moe") in recompute.modules:
            return _BF16 * elements
        if whole or dense or not recompute.zero_memory:
            elements += self._feed_forward(number, tokens)
        elif recompute.zero_memory[number] == 0:
            shared = tokens * (2 * self.shape.shared_width // self.tensor)
            elements += rows * self.shape.experts_per_token * 2 * self.shape.expert_width + shared
        return _BF16 * elements

    def _attention(self) -> int:
        """Return the elements per token: queries, keys and values as projected and as used, and the output."""
        shape, latent = self.shape, self.shape.latent
        if latent is None:
            return 3 * (shape.heads + shape.kv_heads) * shape.head_dim // self.tensor
        head = latent.nope_dim + latent.rope_dim
        down = (latent.query_rank or 0) + latent.cache_rank + latent.rope_dim
        return down + shape.heads * (2 * head + latent.nope_dim + 2 * latent.value_dim) // self.tensor

    def _feed_forward(self, number: int, tokens: int) -> int:
        """Return the elements of a layer's feed-forward part for all tokens.

        With experts these are each token's rows sent and returned, gate, up and their product.
        """
        shape = self.shape
        if shape.is_dense(number):
            return tokens * 3 * shape.feed_forward // self.tensor
        routed = 2 * shape.hidden * self.expert_tensor + 3 * shape.expert_width
        shared = tokens * (3 * shape.shared_width // self.tensor)
        return self._rows(tokens) * shape.experts_per_token * routed + shared
