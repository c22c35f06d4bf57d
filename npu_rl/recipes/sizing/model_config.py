"""The shape of a model, from its config.json or its published name: all sizes that determine its parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.errors import RecipeError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2 and later): ranks of its projections, widths per head.

    Attributes:
        query_rank: q_lora_rank; None if queries are projected directly.
        cache_rank: kv_lora_rank.
        nope_dim: qk_nope_head_dim.
        rope_dim: qk_rope_head_dim.
        value_dim: v_head_dim.
    """

    query_rank: int | None
    cache_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder. Widths are in elements.

    Attributes:
        head_dim: Width of a query and key head; with latent attention nope_dim + rope_dim.
        positions: Positions it was first trained on.
        rope_factor: RoPE scaling factor over those positions.
        experts: Routed experts per layer; 0 is none.
        expert_width: Width of an expert's feed-forward network.
        shared_feed_forward: Width of the shared experts, where it is no multiple of an expert's.
        shared_gate: Whether each token weighs the shared experts.
        expert_groups: Groups of experts (n_group); 0 if tokens choose from all experts.
        groups_per_token: Groups that a token chooses experts from (topk_group).
        dense: The number of first layers without experts.
        other_dense: Other layers without experts (mlp_only_layers, decoder_sparse_step).
        tied: Whether embedding and head share their weights.
        unsupported: Keys and values of config.json that verl's Megatron path refuses
            (verl/models/mcore/config_converter.py@55e3c5b).
        longest: max_position_embeddings of config.json; 0 if it wasn't read. Releases of one architecture differ in it.
        kind: model_type; empty if it isn't known.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    positions: int
    rope_factor: float = 1.0
    latent: LatentAttention | None = None
    experts: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    shared_feed_forward: int = 0
    shared_gate: bool = False
    experts_per_token: int = 0
    expert_groups: int = 0
    groups_per_token: int = 0
    dense: int = 0
    other_dense: frozenset[int] = frozenset()
    tied: bool = False
    query_bias: bool = False
    output_bias: bool = False
    query_norm: bool = False
    unsupported: tuple[tuple[str, Any], ...] = ()
    longest: int = field(default=0, compare=False)
    kind: str = field(default="", compare=False)

    def is_dense(self, layer: int) -> bool:
        """Return whether layer `layer`, from 0, has one feed-forward network instead of experts."""
        return not self.experts or layer < self.dense or layer in self.other_dense

    @property
    def shared_width(self) -> int:
        """Width of the shared experts together."""
        return self.shared_feed_forward or self.shared_experts * self.expert_width


_MOST_LAYERS = 10_000
_LARGEST_SIZE = 10**9

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


@cache
def known_shapes(kind: str) -> Mapping[str, ModelConfig]:
    """Return the shapes in models.json by name, without their longest sequence, in which releases differ.

    Args:
        kind: "published", as config.json on the Hugging Face hub has them (the Qwen3 of July 2025, -2507, have 262144
            positions); or "made", which npu_rl_make_tiny.py of rehearsal/injected makes.
    """
    configs = json.loads(Path(__file__).with_name("models.json").read_bytes())[kind]
    return {name: replace(read_shape(values), longest=0) for name, values in configs.items()}


def shape_of(loaded: LoadedRecipe) -> ModelConfig:
    """Return the shape of the recipe's model. A readable config.json has precedence over `model.architecture`.

    Raises RecipeError if neither gives it.
    """
    model = loaded.recipe.model
    if model.make:
        return known_shapes("made")[model.make]
    place = loaded.locate(model.path or "") / "config.json"
    try:
        if model.architecture and not place.is_file():
            return known_shapes("published")[model.architecture]
        values = read_json(place)
        return _require_possible(read_shape({**values, **model.config}))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise RecipeError(
            "The size of the recipe's model is unknown",
            where=loaded.where("model", "path"),
            why=f"{place} can't be read: {error!r}",
            hint="Put the model's config.json there, or set model.architecture: "
            + ", ".join(known_shapes("published")),
        ) from error


_OF_A_RELEASE = ("unsupported", "positions", "rope_factor")  # releases of one architecture differ in them


def differing_sizes(architecture: str, values: Mapping[str, Any]) -> list[str]:
    """Return the sizes in a config.json that are not a published architecture's, such as "layers 2 and not 61".

    Raises KeyError, TypeError or ValueError if the sizes can't be read.
    """
    found, published = read_shape(values), known_shapes("published")[architecture]
    names = (one.name for one in fields(ModelConfig) if one.compare and one.name not in _OF_A_RELEASE)
    return [
        f"{name} {getattr(found, name)} and not {getattr(published, name)}"
        for name in names
        if getattr(found, name) != getattr(published, name)
    ]


def differing_sizes_in(place: Path, architecture: str) -> list[str]:
    """Return `differing_sizes` of a file; none if it is missing on this machine, or can't be read."""
    try:
        return differing_sizes(architecture, read_json(place))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return []  # `shape_of` reports it where the plan needs it


def _require_possible(shape: ModelConfig) -> ModelConfig:
    """Return the shape if its sizes are plausible, since layers are counted one by one. Raises ValueError."""
    for name, value in vars(shape).items():
        most = _MOST_LAYERS if name in ("layers", "dense") else _LARGEST_SIZE
        if isinstance(value, (int, float)) and not abs(value) <= most:  # NaN neither
            raise ValueError(f"{name} is {value}, and no model has more than {most}")
    return shape


def read_shape(values: Mapping[str, Any]) -> ModelConfig:
    """Return the shape that a config.json describes. Raises KeyError, TypeError or ValueError if it is invalid."""
    kind = str(values.get("model_type", ""))
    heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
    rank = values.get("kv_lora_rank")
    latent = None
    if rank is not None:
        query = values.get("q_lora_rank")
        latent = LatentAttention(
            query_rank=None if query is None else int(query),
            cache_rank=int(rank),
            nope_dim=int(values["qk_nope_head_dim"]),
            rope_dim=int(values["qk_rope_head_dim"]),
            value_dim=int(values["v_head_dim"]),
        )

    def count(name: str) -> int:
        return int(values.get(name, 0) or 0)

    positions, rope_factor = _positions(values)
    experts = int(values.get("n_routed_experts", values.get("num_experts", 0)) or 0)
    layers = int(values["num_hidden_layers"])
    bias = bool(values.get("attention_bias", kind.startswith("qwen2")))
    groups = count("n_group") if experts else 0
    head_dim = latent.nope_dim + latent.rope_dim if latent else count("head_dim") or hidden // heads
    unclean = ("quantization_config", "num_nextn_predict_layers")
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads", heads)),
        head_dim=head_dim,
        feed_forward=int(values["intermediate_size"]),
        vocabulary=int(values["vocab_size"]),
        positions=positions,
        rope_factor=rope_factor,
        latent=latent,
        experts=experts,
        expert_width=count("moe_intermediate_size"),
        shared_experts=count("n_shared_experts"),
        shared_feed_forward=count("shared_expert_intermediate_size"),
        shared_gate=bool(values.get("shared_expert_intermediate_size")),
        experts_per_token=count("num_experts_per_tok"),
        expert_groups=groups if groups > 1 else 0,
        groups_per_token=count("topk_group") if groups > 1 else 0,
        dense=count("first_k_dense_replace") if experts else 0,
        other_dense=_other_dense(values, layers) if experts else frozenset(),
        tied=bool(values.get("tie_word_embeddings", False)),
        query_bias=bias,
        output_bias=bias and not kind.startswith("qwen2"),
        query_norm=kind.startswith("qwen3"),
        longest=count("max_position_embeddings"),
        kind=kind,
        unsupported=tuple((key, values[key]) for key in unclean if values.get(key)),
    )


def _other_dense(values: Mapping[str, Any], layers: int) -> frozenset[int]:
    """Return the layers without experts in Qwen's MoE models (transformers, Qwen3MoeDecoderLayer.__init__@4.52.4)."""
    named, step = set(values.get("mlp_only_layers") or ()), int(values.get("decoder_sparse_step", 1) or 1)
    if layers > _MOST_LAYERS:
        return frozenset()
    return frozenset(
        number for number in range(layers) if number in named or (step > 1 and (number + 1) % step)
    )


def _positions(values: Mapping[str, Any]) -> tuple[int, float]:
    """Return the positions and the RoPE scaling factor; DeepSeek-V3's max_position_embeddings includes the factor."""
    scaling, longest = values.get("rope_scaling"), int(values.get("max_position_embeddings", 0))
    if not isinstance(scaling, Mapping):
        return longest, 1.0
    original = scaling.get("original_max_position_embeddings")
    return int(original or longest), float(scaling.get("factor", 1.0))
