"""The shape of a model: every size its parameters follow from, from config.json or a published model's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from npu_rl.bounded import read_json
from npu_rl.errors import RecipeError
from npu_rl.recipes.load_recipe import LoadedRecipe


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 and later): ranks of its projections, widths per head."""

    query_rank: int | None
    cache_rank: int
    plain: int  # qk_nope_head_dim
    rotary: int  # qk_rope_head_dim
    value: int  # v_head_dim


@dataclass(frozen=True)
class ModelConfig:
    """A decoder. Widths in elements. experts: routed ones per layer, 0 is none. dense: first layers without experts;
    also_dense: others (mlp_only_layers, decoder_sparse_step). shared_feed_forward: width of the shared experts, where
    it is no multiple of an expert's; shared_gate: each token weighs them. kind: model_type, "" if nothing says it.
    expert_groups, groups_per_token: a token's experts come from some groups only (n_group, topk_group); 0 is from all.

    positions: those it was first trained on; stretch: what rope scaling multiplies them by. unclean: what of
    config.json verl's Megatron path refuses, key and value (verl/models/mcore/config_converter.py@55e3c5b).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    feed_forward: int
    vocabulary: int
    positions: int
    stretch: float = 1.0
    latent: Latent | None = None
    experts: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    shared_feed_forward: int = 0
    shared_gate: bool = False
    experts_per_token: int = 0
    expert_groups: int = 0
    groups_per_token: int = 0
    dense: int = 0
    also_dense: frozenset[int] = frozenset()
    tied: bool = False
    query_bias: bool = False
    output_bias: bool = False
    query_norm: bool = False
    unclean: tuple[tuple[str, Any], ...] = ()
    kind: str = field(default="", compare=False)

    def is_dense(self, layer: int) -> bool:
        """Whether layer `layer`, from 0, has one feed-forward network instead of experts."""
        return not self.experts or layer < self.dense or layer in self.also_dense

    @property
    def shared_width(self) -> int:
        """Width of the shared experts together."""
        return self.shared_feed_forward or self.shared_experts * self.expert_width


# Their config.json on the Hugging Face hub.
_MOST_LAYERS = 10_000
_LARGEST_SIZE = 10**9

PUBLISHED: Mapping[str, ModelConfig] = {
    "deepseek-v3": ModelConfig(
        layers=61,
        hidden=7168,
        heads=128,
        kv_heads=128,
        head=192,
        feed_forward=18432,
        vocabulary=129280,
        positions=4096,
        stretch=40.0,
        latent=Latent(query_rank=1536, cache_rank=512, plain=128, rotary=64, value=128),
        experts=256,
        expert_width=2048,
        shared_experts=1,
        experts_per_token=8,
        expert_groups=8,
        groups_per_token=4,
        dense=3,
    )
}
# What standins/injected/npu_rl_make_tiny.py makes; the vocabulary is that of its tokenizer, rounded up to 64.
TINY = ModelConfig(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=4,
    head=32,
    feed_forward=128,
    vocabulary=320,
    positions=512,
    latent=Latent(query_rank=32, cache_rank=32, plain=24, rotary=8, value=32),
    experts=8,
    expert_width=32,
    shared_experts=1,
    experts_per_token=2,
    expert_groups=2,
    groups_per_token=1,
    dense=1,
)
KNOWN_TYPES = (
    "deepseek_v3",
    "deepseek_v2",
    "llama",
    "mistral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
)
"""Values of model_type whose parameters are counted exactly; any other is counted as Llama's are."""


def shape_of(loaded: LoadedRecipe) -> ModelConfig:
    """The shape of the recipe's model. A config.json that is at hand goes before `model.architecture`.

    Raises RecipeError if nothing says it.
    """
    model = loaded.recipe.model
    if model.make:
        return replace(TINY, positions=4096, stretch=40.0) if model.make.endswith("-sums") else TINY
    place = loaded.locate(model.path or "") / "config.json"
    try:
        if model.architecture and not place.is_file():
            return PUBLISHED[model.architecture]
        values = read_json(place)
        return _possible(read_shape({**values, **model.config}))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise RecipeError(
            "The size of the recipe's model is unknown",
            where=loaded.where("model", "path"),
            why=f"{place} can't be read: {error!r}",
            hint=f"Put the model's config.json there, or set model.architecture: {', '.join(PUBLISHED)}",
        ) from error


def _possible(shape: ModelConfig) -> ModelConfig:
    """The shape, if a model may have it: what is planned counts its layers one by one. Raises ValueError."""
    for name, value in vars(shape).items():
        most = _MOST_LAYERS if name in ("layers", "dense") else _LARGEST_SIZE
        if isinstance(value, int) and value > most:
            raise ValueError(f"{name} is {value}, and no model has more than {most}")
    return shape


def read_shape(values: Mapping[str, Any]) -> ModelConfig:
    """The shape a config.json describes. Raises KeyError, TypeError or ValueError for what is no such file."""
    kind = str(values.get("model_type", ""))
    heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
    rank = values.get("kv_lora_rank")
    latent = None
    if rank is not None:
        query = values.get("q_lora_rank")
        latent = Latent(
            query_rank=None if query is None else int(query),
            cache_rank=int(rank),
            plain=int(values["qk_nope_head_dim"]),
            rotary=int(values["qk_rope_head_dim"]),
            value=int(values["v_head_dim"]),
        )
    positions, stretch = _reach(values)
    experts = int(values.get("n_routed_experts", values.get("num_experts", 0)) or 0)
    layers = int(values["num_hidden_layers"])
    bias = bool(values.get("attention_bias", kind.startswith("qwen2")))
    groups = int(values.get("n_group", 0) or 0) if experts else 0
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads", heads)),
        head=latent.plain + latent.rotary if latent else int(values.get("head_dim") or hidden // heads),
        feed_forward=int(values["intermediate_size"]),
        vocabulary=int(values["vocab_size"]),
        positions=positions,
        stretch=stretch,
        latent=latent,
        experts=experts,
        expert_width=int(values.get("moe_intermediate_size", 0) or 0),
        shared_experts=int(values.get("n_shared_experts", 0) or 0),
        shared_feed_forward=int(values.get("shared_expert_intermediate_size", 0) or 0),
        shared_gate=bool(values.get("shared_expert_intermediate_size")),
        experts_per_token=int(values.get("num_experts_per_tok", 0) or 0),
        expert_groups=groups if groups > 1 else 0,
        groups_per_token=int(values.get("topk_group", 0) or 0) if groups > 1 else 0,
        dense=int(values.get("first_k_dense_replace", 0) or 0) if experts else 0,
        also_dense=_also_dense(values, layers) if experts else frozenset(),
        tied=bool(values.get("tie_word_embeddings", False)),
        query_bias=bias,
        output_bias=bias and not kind.startswith("qwen2"),
        query_norm=kind.startswith("qwen3"),
        kind=kind,
        unclean=tuple(
            (key, values[key])
            for key in ("quantization_config", "num_nextn_predict_layers")
            if values.get(key)
        ),
    )


def _also_dense(values: Mapping[str, Any], layers: int) -> frozenset[int]:
    """Layers without experts in Qwen's MoE models (transformers, Qwen3MoeDecoderLayer.__init__@4.52.4)."""
    named, step = set(values.get("mlp_only_layers") or ()), int(values.get("decoder_sparse_step", 1) or 1)
    if layers > _MOST_LAYERS:
        return frozenset()
    return frozenset(
        number for number in range(layers) if number in named or (step > 1 and (number + 1) % step)
    )


def _reach(values: Mapping[str, Any]) -> tuple[int, float]:
    """Positions and the factor over them. DeepSeek-V3's max_position_embeddings has its factor in it already."""
    scaling, longest = values.get("rope_scaling"), int(values.get("max_position_embeddings", 0))
    if not isinstance(scaling, Mapping):
        return longest, 1.0
    original = scaling.get("original_max_position_embeddings")
    return int(original or longest), float(scaling.get("factor", 1.0))
