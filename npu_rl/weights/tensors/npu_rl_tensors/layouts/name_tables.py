"""Which tensor of Hugging Face's model goes where in Megatron's: the tables of names and fusions.

Megatron-core 0.12.1, `dist_checkpointing`: the names on both sides are those of verl/models/mcore/weight_converter.py
@55e3c5b; the keys are those that `sharded_state_dict()` makes of the model verl builds (core/transformer/moe/experts.py
@core_v0.12.1: the keys of GroupedMLP and TEGroupedMLP are SequentialMLP's).
Megatron-core 0.8, legacy: of DeepSeek-V3 MindSpeed-LLM's examples/mcore/deepseek3/convert_ckpt_deepseek3.py@3a712f5; of
Qwen2.5 its mindspeed_llm/tasks/checkpoint/models.py and saver.py@421ef7bc, for `--model-type-hf llama2 --add-qkv-bias`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .model_sizes import DEEPSEEK, ModelDims

Split = Literal["whole", "rows", "columns", "groups"]
Style = Literal["core-0.12", "core-0.8"]


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of a Hugging Face tensor, all its columns. `shape`: of the tensor."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Weight:
    """One tensor of Megatron's model: its sources, one below the other.

    Attributes:
        key: Of a layer's tensor what comes after `decoder.layers.N.`, else the whole name.
        split: How tensor parallel ranks share it: each has all of it, its share of each source's rows or columns, or
            its share of the sources (the groups of a grouped-query attention).
        expert: Which expert of the layer it is a part of; the experts of a layer are one tensor.
        transposed: Whether it is stored with rows and columns exchanged.
        precise: Kept in float32; everything else is bfloat16.
        last: Of the tensors outside the layers, whether it is the last stage's.
    """

    key: str
    sources: tuple[Rows, ...]
    split: Split
    layer: int | None = None
    expert: int | None = None
    transposed: bool = False
    precise: bool = False
    last: bool = False


def hf_shapes(model: ModelDims) -> dict[str, tuple[int, ...]]:
    """Return the tensors that the Hugging Face model must have."""
    return {source.name: source.shape for entry in entries(model, "core-0.12") for source in entry.sources}


def entries(model: ModelDims, style: Style) -> Iterator[Weight]:
    """Yield all tensors of Megatron's model."""
    table = (model.vocabulary, model.hidden)
    yield Weight("embedding.word_embeddings.weight", (_all("model.embed_tokens.weight", *table),), "rows")
    for layer in range(model.layers):
        attention = _latent_attention if model.architecture == DEEPSEEK else _grouped_attention
        for entry in (*attention(model, layer, style), *_feed_forward(model, layer, style)):
            yield Weight(**{**entry.__dict__, "layer": layer})
    yield Weight(
        "decoder.final_layernorm.weight", (_all("model.norm.weight", model.hidden),), "whole", last=True
    )
    if not model.tied:
        yield Weight("output_layer.weight", (_all("lm_head.weight", *table),), "rows", last=True)


def _all(name: str, *shape: int) -> Rows:
    return Rows(name, shape, 0, shape[0])


def _latent_attention(model: ModelDims, layer: int, style: Style) -> Iterator[Weight]:
    hf = f"model.layers.{layer}.self_attn."
    norm = _all(f"model.layers.{layer}.input_layernorm.weight", model.hidden)
    queries = model.heads * (model.nope + model.rope)
    down = _all(f"{hf}kv_a_proj_with_mqa.weight", model.latent_rank + model.rope, model.hidden)
    down_norm = _all(f"{hf}kv_a_layernorm.weight", model.latent_rank)
    up = _all(f"{hf}kv_b_proj.weight", model.heads * (model.nope + model.value), model.latent_rank)
    output = _all(f"{hf}o_proj.weight", model.hidden, model.heads * model.value)
    mcore = "self_attention."
    yield Weight("input_layernorm.weight", (norm,), "whole")
    if style == "core-0.12":
        if model.query_rank is None:
            yield Weight(
                f"{mcore}linear_q_proj.weight", (_all(f"{hf}q_proj.weight", queries, model.hidden),), "rows"
            )
        else:
            rank = model.query_rank
            q_down = _all(f"{hf}q_a_proj.weight", rank, model.hidden)
            yield Weight(f"{mcore}linear_q_down_proj.weight", (q_down,), "rows")
            q_norm = _all(f"{hf}q_a_layernorm.weight", rank)
            yield Weight(f"{mcore}linear_q_up_proj.layer_norm_weight", (q_norm,), "whole")
            yield Weight(
                f"{mcore}linear_q_up_proj.weight", (_all(f"{hf}q_b_proj.weight", queries, rank),), "rows"
            )
        yield Weight(f"{mcore}linear_kv_down_proj.weight", (down,), "rows")
        yield Weight(f"{mcore}linear_kv_up_proj.layer_norm_weight", (down_norm,), "whole")
        yield Weight(f"{mcore}linear_kv_up_proj.weight", (up,), "rows")
    else:
        rank = model.query_rank or 0  # refused without, in `legacy_layout`
        q_down = _all(f"{hf}q_a_proj.weight", rank, model.hidden)
        yield Weight(f"{mcore}linear_qkv.weight", (q_down, down), "whole")
        yield Weight(f"{mcore}q_layernorm.weight", (_all(f"{hf}q_a_layernorm.weight", rank),), "whole")
        yield Weight(f"{mcore}k_layernorm.weight", (down_norm,), "whole")
        yield Weight(f"{mcore}linear_qb.weight", (_all(f"{hf}q_b_proj.weight", queries, rank),), "rows")
        yield Weight(f"{mcore}linear_kvb.weight", (up,), "rows")
    yield Weight(f"{mcore}linear_proj.weight", (output,), "columns")


def _grouped_attention(model: ModelDims, layer: int, style: Style) -> Iterator[Weight]:
    hf, mcore = f"model.layers.{layer}.self_attn.", "self_attention."
    norm = _all(f"model.layers.{layer}.input_layernorm.weight", model.hidden)
    fused = style == "core-0.12"
    yield Weight(
        f"{mcore}linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight", (norm,), "whole"
    )
    yield Weight(f"{mcore}linear_qkv.weight", _groups(model, hf, "weight", (model.hidden,)), "groups")
    if model.biased:
        yield Weight(f"{mcore}linear_qkv.bias", _groups(model, hf, "bias", ()), "groups")
    if model.normed_heads:
        for one in ("q", "k"):
            norm = _all(f"{hf}{one}_norm.weight", model.head)
            yield Weight(f"{mcore}{one}_layernorm.weight", (norm,), "whole")
    output = _all(f"{hf}o_proj.weight", model.hidden, model.heads * model.head)
    yield Weight(f"{mcore}linear_proj.weight", (output,), "columns")


def _groups(model: ModelDims, hf: str, kind: str, columns: tuple[int, ...]) -> tuple[Rows, ...]:
    """Of each group its queries, its keys and its values, as Megatron-core's linear_qkv has them."""
    found = []
    for group in range(model.key_value_heads):
        for one, rows in (
            ("q", model.heads // model.key_value_heads * model.head),
            ("k", model.head),
            ("v", model.head),
        ):
            shape = (rows * model.key_value_heads, *columns)
            found.append(Rows(f"{hf}{one}_proj.{kind}", shape, group * rows, (group + 1) * rows))
    return tuple(found)


def _feed_forward(model: ModelDims, layer: int, style: Style) -> Iterator[Weight]:
    hf = f"model.layers.{layer}."
    dense = model.is_dense(layer)
    norm = _all(f"{hf}post_attention_layernorm.weight", model.hidden)
    fused = dense and style == "core-0.12"
    yield Weight(
        "mlp.linear_fc1.layer_norm_weight" if fused else "pre_mlp_layernorm.weight", (norm,), "whole"
    )
    if dense:
        yield from _gated(f"{hf}mlp.", "mlp.", model.hidden, model.ffn)
        return
    yield Weight("mlp.router.weight", (_all(f"{hf}mlp.gate.weight", model.experts, model.hidden),), "whole")
    if model.architecture == DEEPSEEK:
        # In float32 as Megatron-core has it (transformer/moe/router.py:125@core_v0.12.1): small differences decide.
        bias = _all(f"{hf}mlp.gate.e_score_correction_bias", model.experts)
        yield Weight("mlp.router.expert_bias", (bias,), "whole", precise=True)
    if model.shared_experts:
        ffn = model.shared_experts * model.expert_ffn
        yield from _gated(f"{hf}mlp.shared_experts.", "mlp.shared_experts.", model.hidden, ffn)
    for expert in range(model.experts):
        parts = _gated(f"{hf}mlp.experts.{expert}.", "", model.hidden, model.expert_ffn)
        for entry, old in zip(parts, ("weight1", "weight2"), strict=True):
            new = f"mlp.experts.experts.{entry.key}"
            key = new if style == "core-0.12" else f"mlp.experts.{old}"
            yield Weight(key, entry.sources, entry.split, expert=expert, transposed=style == "core-0.8")


def _gated(hf: str, mcore: str, hidden: int, ffn: int) -> Iterator[Weight]:
    gate, up = _all(f"{hf}gate_proj.weight", ffn, hidden), _all(f"{hf}up_proj.weight", ffn, hidden)
    yield Weight(f"{mcore}linear_fc1.weight", (gate, up), "rows")
    yield Weight(f"{mcore}linear_fc2.weight", (_all(f"{hf}down_proj.weight", hidden, ffn),), "columns")
