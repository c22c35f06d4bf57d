"""Tables of tensor names and fusions that map Hugging Face models to Megatron's.

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
    """Rows `start` to `stop` of a Hugging Face tensor with the given shape."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Weight:
    """One tensor of Megatron's model, concatenated from its sources along the rows.

    Attributes:
        key: Name after `decoder.layers.N.`, or the whole name of a tensor outside the layers.
        split: How tensor-parallel ranks share it: each has the whole, its share of each source's rows or columns, or
            its share of the sources (the groups of a grouped-query attention).
        expert: Index of its expert in the layer; a layer's experts are one tensor.
        transposed: Whether it is stored with rows and columns exchanged.
        precise: Kept in float32; everything else is bfloat16.
        last: Whether the last stage has it, for a tensor outside the layers.
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
    """Return the shapes of the Hugging Face model's tensors."""
    return {source.name: source.shape for entry in entries(model, "core-0.12") for source in entry.sources}


def entries(model: ModelDims, style: Style) -> Iterator[Weight]:
    """Yield all tensors of Megatron's model."""
    table = (model.vocab_size, model.hidden_size)
    yield Weight("embedding.word_embeddings.weight", (_all("model.embed_tokens.weight", *table),), "rows")
    for layer in range(model.num_hidden_layers):
        attention = _latent_attention if model.architecture == DEEPSEEK else _grouped_attention
        for entry in (*attention(model, layer, style), *_feed_forward(model, layer, style)):
            yield Weight(**{**entry.__dict__, "layer": layer})
    yield Weight(
        "decoder.final_layernorm.weight", (_all("model.norm.weight", model.hidden_size),), "whole", last=True
    )
    if not model.tie_word_embeddings:
        yield Weight("output_layer.weight", (_all("lm_head.weight", *table),), "rows", last=True)


def _all(name: str, *shape: int) -> Rows:
    return Rows(name, shape, 0, shape[0])


def _latent_attention(model: ModelDims, layer: int, style: Style) -> Iterator[Weight]:
    hidden, heads, latent = model.hidden_size, model.num_attention_heads, model.kv_lora_rank
    nope, rope, value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
    rank = model.q_lora_rank or 0  # without it `legacy_layout` refuses the model

    def source(name: str, *shape: int) -> Rows:
        return _all(f"model.layers.{layer}.self_attn.{name}.weight", *shape)

    def weight(key: str, split: Split, *sources: Rows) -> Weight:
        return Weight(f"self_attention.{key}", sources, split)

    q_down, q_norm = source("q_a_proj", rank, hidden), source("q_a_layernorm", rank)
    q_up = source("q_b_proj", heads * (nope + rope), rank)
    down, down_norm = source("kv_a_proj_with_mqa", latent + rope, hidden), source("kv_a_layernorm", latent)
    up = source("kv_b_proj", heads * (nope + value), latent)
    norm = _all(f"model.layers.{layer}.input_layernorm.weight", hidden)
    yield Weight("input_layernorm.weight", (norm,), "whole")
    if style == "core-0.12":
        if model.q_lora_rank is None:
            yield weight("linear_q_proj.weight", "rows", source("q_proj", heads * (nope + rope), hidden))
        else:
            yield weight("linear_q_down_proj.weight", "rows", q_down)
            yield weight("linear_q_up_proj.layer_norm_weight", "whole", q_norm)
            yield weight("linear_q_up_proj.weight", "rows", q_up)
        yield weight("linear_kv_down_proj.weight", "rows", down)
        yield weight("linear_kv_up_proj.layer_norm_weight", "whole", down_norm)
        yield weight("linear_kv_up_proj.weight", "rows", up)
    else:
        yield weight("linear_qkv.weight", "whole", q_down, down)
        yield weight("q_layernorm.weight", "whole", q_norm)
        yield weight("k_layernorm.weight", "whole", down_norm)
        yield weight("linear_qb.weight", "rows", q_up)
        yield weight("linear_kvb.weight", "rows", up)
    yield weight("linear_proj.weight", "columns", source("o_proj", hidden, heads * value))


def _grouped_attention(model: ModelDims, layer: int, style: Style) -> Iterator[Weight]:
    hf, mcore = f"model.layers.{layer}.self_attn.", "self_attention."
    norm = _all(f"model.layers.{layer}.input_layernorm.weight", model.hidden_size)
    fused = style == "core-0.12"
    yield Weight(
        f"{mcore}linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight", (norm,), "whole"
    )
    yield Weight(f"{mcore}linear_qkv.weight", _groups(model, hf, "weight", (model.hidden_size,)), "groups")
    if model.qkv_bias:
        yield Weight(f"{mcore}linear_qkv.bias", _groups(model, hf, "bias", ()), "groups")
    if model.qk_layernorm:
        for one in ("q", "k"):
            norm = _all(f"{hf}{one}_norm.weight", model.head_dim)
            yield Weight(f"{mcore}{one}_layernorm.weight", (norm,), "whole")
    output = _all(f"{hf}o_proj.weight", model.hidden_size, model.num_attention_heads * model.head_dim)
    yield Weight(f"{mcore}linear_proj.weight", (output,), "columns")


def _groups(model: ModelDims, hf: str, kind: str, columns: tuple[int, ...]) -> tuple[Rows, ...]:
    """Return each group's queries, keys and values in the order of Megatron-core's linear_qkv."""
    found = []
    for group in range(model.num_key_value_heads):
        for one, rows in (
            ("q", model.num_attention_heads // model.num_key_value_heads * model.head_dim),
            ("k", model.head_dim),
            ("v", model.head_dim),
        ):
            shape = (rows * model.num_key_value_heads, *columns)
            found.append(Rows(f"{hf}{one}_proj.{kind}", shape, group * rows, (group + 1) * rows))
    return tuple(found)


def _feed_forward(model: ModelDims, layer: int, style: Style) -> Iterator[Weight]:
    hf = f"model.layers.{layer}."
    dense = model.is_dense(layer)
    norm = _all(f"{hf}post_attention_layernorm.weight", model.hidden_size)
    fused = dense and style == "core-0.12"
    yield Weight(
        "mlp.linear_fc1.layer_norm_weight" if fused else "pre_mlp_layernorm.weight", (norm,), "whole"
    )
    if dense:
        yield from _gated(f"{hf}mlp.", "mlp.", model.hidden_size, model.intermediate_size)
        return
    yield Weight(
        "mlp.router.weight", (_all(f"{hf}mlp.gate.weight", model.num_experts, model.hidden_size),), "whole"
    )
    if model.architecture == DEEPSEEK:
        # In float32 as Megatron-core has it (transformer/moe/router.py:125@core_v0.12.1): small differences decide.
        bias = _all(f"{hf}mlp.gate.e_score_correction_bias", model.num_experts)
        yield Weight("mlp.router.expert_bias", (bias,), "whole", precise=True)
    if model.n_shared_experts:
        ffn = model.n_shared_experts * model.moe_intermediate_size
        yield from _gated(f"{hf}mlp.shared_experts.", "mlp.shared_experts.", model.hidden_size, ffn)
    for expert in range(model.num_experts):
        parts = _gated(f"{hf}mlp.experts.{expert}.", "", model.hidden_size, model.moe_intermediate_size)
        for entry, old in zip(parts, ("weight1", "weight2"), strict=True):
            new = f"mlp.experts.experts.{entry.key}"
            key = new if style == "core-0.12" else f"mlp.experts.{old}"
            yield Weight(key, entry.sources, entry.split, expert=expert, transposed=style == "core-0.8")


def _gated(hf: str, mcore: str, hidden: int, ffn: int) -> Iterator[Weight]:
    gate, up = _all(f"{hf}gate_proj.weight", ffn, hidden), _all(f"{hf}up_proj.weight", ffn, hidden)
    yield Weight(f"{mcore}linear_fc1.weight", (gate, up), "rows")
    yield Weight(f"{mcore}linear_fc2.weight", (_all(f"{hf}down_proj.weight", hidden, ffn),), "columns")
