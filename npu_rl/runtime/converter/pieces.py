"""Which tensor of Hugging Face's DeepSeek-V3 goes where in a checkpoint of Megatron-core.

The names on both sides are those of verl/models/mcore/weight_converter.py (McoreToHFWeightConverterDpskv3)@55e3c5b. The
keys are those that `sharded_state_dict()` of megatron/core 0.12.1 makes of the model verl builds (layers of one model
differ, so each has keys of its own: transformer/transformer_block.py:585; all experts of a layer are one tensor, with
the expert as its first axis: transformer/moe/experts.py, SequentialMLP and TEGroupedMLP alike; gate and up projection
are the halves of linear_fc1: transformer/mlp.py, apply_swiglu_sharded_factory).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .architecture import Architecture
from .layout import Layout

Fragment = tuple[int, int, int]
"""(axis of the whole tensor, which fragment, of how many): as ShardedTensor.from_rank_offsets takes it."""

_BIAS = "e_score_correction_bias"


@dataclass(frozen=True)
class Piece:
    """One tensor of the Hugging Face model and its place in the tensor `key` of the checkpoint.

    shape: of this piece. fragments: where it lies; none: it is the whole tensor. prepended: axes of the whole tensor
    before those of the piece (1 for an expert). precise: kept in float32; everything else is bfloat16.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    fragments: tuple[Fragment, ...] = ()
    prepended: int = 0
    precise: bool = False

    @property
    def bytes(self) -> int:
        """Bytes in the checkpoint."""
        return math.prod(self.shape) * (4 if self.precise else 2)


@dataclass(frozen=True)
class State:
    """An empty `_extra_state` that Transformer Engine's layers, and Megatron-core's own, ask a checkpoint for.

    number, of: which expert's, counted over the layer; (0, 1) outside the experts.
    """

    key: str
    number: int = 0
    of: int = 1


def names(model: Architecture) -> frozenset[str]:
    """The names of all tensors that the Hugging Face model must have."""
    whole = Layout((model.layers,), 1)
    return frozenset(piece.name for piece in pieces(model, whole, 0))


def pieces(model: Architecture, layout: Layout, rank: int) -> list[Piece]:
    """What a rank reads and writes. Every piece of the model is exactly one rank's.

    A rank has its own experts of its own layers. The other tensors of a stage are dealt out among the stage's ranks,
    the largest first, to whoever has least.
    """
    stage, group = layout.stage(rank), layout.expert_group(rank)
    own = [
        piece
        for layer in layout.layers_of(stage)
        if not model.is_dense(layer)
        for expert in layout.experts_of(group, model.experts)
        for piece in _expert(model, layer, expert)
    ]
    return own + _dealt(_common(model, layout, stage), layout.expert)[group]


def states(model: Architecture, layout: Layout, rank: int) -> list[State]:
    """The empty extra states a rank writes: of its experts, and in each stage the first rank those of the rest.

    A model with `moe_grouped_gemm` asks for none of its experts; one without asks for all. Too many do no harm
    (verl loads with ASSUME_OK_UNEXPECTED, verl/utils/model.py:544@55e3c5b), so one checkpoint serves both.
    """
    stage, group = layout.stage(rank), layout.expert_group(rank)
    found: list[State] = []
    for layer in layout.layers_of(stage):
        prefix = f"decoder.layers.{layer}."
        if group == 0:
            found += [State(f"{prefix}{module}._extra_state") for module in _stateful(model, layer)]
        if not model.is_dense(layer):
            found += [
                State(f"{prefix}mlp.experts.experts.{linear}._extra_state", expert, model.experts)
                for expert in layout.experts_of(group, model.experts)
                for linear in ("linear_fc1", "linear_fc2")
            ]
    return found


def _dealt(all_pieces: list[Piece], hands: int) -> list[list[Piece]]:
    dealt: list[list[Piece]] = [[] for _ in range(hands)]
    weights = [0] * hands
    for piece in sorted(all_pieces, key=lambda piece: (-piece.bytes, piece.name)):
        least = weights.index(min(weights))
        dealt[least].append(piece)
        weights[least] += piece.bytes
    return dealt


def _common(model: Architecture, layout: Layout, stage: int) -> list[Piece]:
    """The tensors of a stage that are no expert's."""
    table = (model.vocabulary, model.hidden)
    found: list[Piece] = []
    if stage == 0:
        found.append(Piece("model.embed_tokens.weight", "embedding.word_embeddings.weight", table))
    for layer in layout.layers_of(stage):
        found += _attention(model, layer)
        found += _dense(model, layer) if model.is_dense(layer) else _mixture(model, layer)
    if stage == layout.pipeline - 1:
        found.append(Piece("model.norm.weight", "decoder.final_layernorm.weight", (model.hidden,)))
        if not model.tied:
            found.append(Piece("lm_head.weight", "output_layer.weight", table))
    return found


def _attention(model: Architecture, layer: int) -> Iterator[Piece]:
    hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    queries = model.heads * (model.nope + model.rope)
    keys_and_values = model.heads * (model.nope + model.value)
    yield Piece(f"{hf}input_layernorm.weight", f"{mcore}input_layernorm.weight", (model.hidden,))
    hf, mcore = f"{hf}self_attn.", f"{mcore}self_attention."
    if model.query_rank is None:
        yield Piece(f"{hf}q_proj.weight", f"{mcore}linear_q_proj.weight", (queries, model.hidden))
    else:
        rank, up = model.query_rank, f"{mcore}linear_q_up_proj."
        yield Piece(f"{hf}q_a_proj.weight", f"{mcore}linear_q_down_proj.weight", (rank, model.hidden))
        yield Piece(f"{hf}q_a_layernorm.weight", f"{up}layer_norm_weight", (rank,))
        yield Piece(f"{hf}q_b_proj.weight", f"{up}weight", (queries, rank))
    down, up = (model.latent_rank + model.rope, model.hidden), f"{mcore}linear_kv_up_proj."
    yield Piece(f"{hf}kv_a_proj_with_mqa.weight", f"{mcore}linear_kv_down_proj.weight", down)
    yield Piece(f"{hf}kv_a_layernorm.weight", f"{up}layer_norm_weight", (model.latent_rank,))
    yield Piece(f"{hf}kv_b_proj.weight", f"{up}weight", (keys_and_values, model.latent_rank))
    output = (model.hidden, model.heads * model.value)
    yield Piece(f"{hf}o_proj.weight", f"{mcore}linear_proj.weight", output)


def _dense(model: Architecture, layer: int) -> Iterator[Piece]:
    hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}.mlp."
    norm = f"{mcore}linear_fc1.layer_norm_weight"
    yield Piece(f"{hf}post_attention_layernorm.weight", norm, (model.hidden,))
    yield from _gated(f"{hf}mlp.", mcore, model.hidden, model.ffn)


def _mixture(model: Architecture, layer: int) -> Iterator[Piece]:
    hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    norm = f"{mcore}pre_mlp_layernorm.weight"
    yield Piece(f"{hf}post_attention_layernorm.weight", norm, (model.hidden,))
    gate = (model.experts, model.hidden)
    yield Piece(f"{hf}mlp.gate.weight", f"{mcore}mlp.router.weight", gate)
    # In float32 as Megatron-core has it (transformer/moe/router.py:125@core_v0.12.1): small differences decide.
    bias = f"{mcore}mlp.router.expert_bias"
    yield Piece(f"{hf}mlp.gate.{_BIAS}", bias, (model.experts,), precise=True)
    shared = model.shared_experts * model.expert_ffn
    yield from _gated(f"{hf}mlp.shared_experts.", f"{mcore}mlp.shared_experts.", model.hidden, shared)


def _expert(model: Architecture, layer: int, expert: int) -> Iterator[Piece]:
    hf, mcore = f"model.layers.{layer}.mlp.experts.{expert}.", f"decoder.layers.{layer}.mlp.experts.experts."
    yield from _gated(hf, mcore, model.hidden, model.expert_ffn, (0, expert, model.experts))


def _gated(hf: str, mcore: str, hidden: int, ffn: int, *expert: Fragment) -> Iterator[Piece]:
    """A gated feed-forward network; `expert` is its place among the experts, if it is one of them."""
    axes = len(expert)
    for half, name in enumerate(("gate_proj", "up_proj")):
        fragments = (*expert, (axes, half, 2))
        yield Piece(f"{hf}{name}.weight", f"{mcore}linear_fc1.weight", (ffn, hidden), fragments, axes)
    yield Piece(f"{hf}down_proj.weight", f"{mcore}linear_fc2.weight", (hidden, ffn), expert, axes)


def _stateful(model: Architecture, layer: int) -> list[str]:
    """The modules of a layer whose extra state a checkpoint has, outside the experts."""
    attention = ["linear_kv_down_proj", "linear_proj"]
    attention.append("linear_q_proj" if model.query_rank is None else "linear_q_down_proj")
    mlp = (
        ["linear_fc2"]
        if model.is_dense(layer)
        else ["shared_experts.linear_fc1", "shared_experts.linear_fc2"]
    )
    return [f"self_attention.{name}" for name in attention] + [f"mlp.{name}" for name in mlp]
