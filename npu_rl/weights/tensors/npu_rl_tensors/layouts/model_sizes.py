"""The sizes of a model in its config.json, and a check for settings that the tables don't support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..tensor_error import TensorError
from ..untrusted_values import is_size, shown

DEEPSEEK = "DeepseekV3ForCausalLM"
QWEN = {
    "Qwen2ForCausalLM": "Qwen2.5",
    "Qwen3ForCausalLM": "Qwen3",
    "Qwen3MoeForCausalLM": "Qwen3-MoE",
}
_MOST_LAYERS, _MOST_EXPERTS = 10_000, 200_000  # DeepSeek-V3 has 61, and 14,848 experts in all of them


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a model in elements, under config.json's names.

    Attributes:
        architecture: The class of transformers.
        dense_layers: Layers before the first with experts (first_k_dense_replace); all of them in a model without.
        num_experts: Of each layer with experts (n_routed_experts of a DeepSeek-V3).
        q_lora_rank: None: one projection.
        qkv_bias: Whether the projections of queries, keys and values have biases.
        qk_layernorm: Whether queries and keys are normalised by head.
    """

    architecture: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    intermediate_size: int
    tie_word_embeddings: bool
    dense_layers: int
    moe_intermediate_size: int = 0
    num_experts: int = 0
    n_shared_experts: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    qkv_bias: bool = False
    qk_layernorm: bool = False

    def is_dense(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has no experts."""
        return layer < self.dense_layers

    @property
    def uniform(self) -> bool:
        """Return whether `torch_dist` stacks all layers in one tensor, as Megatron-core does for identical layers.

        Where `moe_layer_freq` is a list each has keys of its own, alike or not (transformer_block.py:585@core_v0.12.1);
        verl makes one for every DeepSeek-V3 (models/mcore/config_converter.py:303@55e3c5b).
        """
        return self.architecture != DEEPSEEK and self.dense_layers in (0, self.num_hidden_layers)


def model_sizes(config: Mapping[str, Any], where: str) -> ModelDims:
    """Return the sizes of a model.

    Raises:
        TensorError: With all config.json settings that the tables of names don't support.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if name == DEEPSEEK:
        return _deepseek(_Reader(config, where))
    if isinstance(name, str) and name in QWEN:
        return _qwen(name, _Reader(config, where))
    raise TensorError(
        "Unsupported model",
        where=where,
        why=f"`architectures` is {names!r}; there are tables of names for {', '.join([DEEPSEEK, *QWEN])}.",
    )


def _deepseek(read: _Reader) -> ModelDims:
    read.refuse("attention_bias", False, "Megatron-core's model of verl has no biases of the attention")
    read.refuse("moe_layer_freq", 1, "experts are in every layer after the dense ones")
    ranks = () if read.config.get("q_lora_rank") is None else ("q_lora_rank",)
    layers = read.size("num_hidden_layers")
    return read.dims(
        *("hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"),
        *("moe_intermediate_size", "n_shared_experts", *ranks, "kv_lora_rank"),
        *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        architecture=DEEPSEEK,
        num_hidden_layers=layers,
        dense_layers=min(read.size("first_k_dense_replace", least=0), layers),
        num_experts=read.size("n_routed_experts"),
    )


def _qwen(name: str, read: _Reader) -> ModelDims:
    mixture, second = name == "Qwen3MoeForCausalLM", name == "Qwen2ForCausalLM"
    if mixture:
        read.refuse("decoder_sparse_step", 1, "every layer has experts")
        if read.config.get("mlp_only_layers"):
            read.wrong.append("`mlp_only_layers` is not empty: every layer has experts in the tables")
    if not second:
        read.refuse("attention_bias", False, "its projections have no biases")
    layers, hidden = read.size("num_hidden_layers"), read.size("hidden_size")
    heads = read.size("num_attention_heads")
    given = read.config.get("head_dim") is not None
    return read.dims(
        *("vocab_size", "num_key_value_heads"),
        *(("moe_intermediate_size", "num_experts") if mixture else ()),
        architecture=name,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=read.size("head_dim") if given else hidden // heads,
        dense_layers=0 if mixture else layers,
        intermediate_size=read.size("intermediate_size", least=0 if mixture else 1),
        qkv_bias=second,
        qk_layernorm=not second,
    )


class _Reader:
    """Reader of config.json values that collects problems."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self._where = config, where
        self.wrong: list[str] = []

    def size(self, key: str, least: int = 1) -> int:
        value = self.config.get(key)
        if is_size(value) and value >= least:
            return value
        self.wrong.append(f"`{key}` is {shown(value)}, not a whole number from {least}")
        return least

    def refuse(self, key: str, usual: object, why: str) -> None:
        if self.config.get(key, usual) != usual:
            self.wrong.append(f"`{key}` is {shown(self.config[key])}, but in the tables {why}")

    def dims(self, *keys: str, **others: Any) -> ModelDims:
        """Return the sizes under `keys`, and `others`. Raises TensorError with all problems."""
        sizes: dict[str, Any] = {key: self.size(key) for key in keys}
        tied = bool(self.config.get("tie_word_embeddings", False))
        found = ModelDims(**sizes, **others, tie_word_embeddings=tied)
        heads, groups = found.num_attention_heads, found.num_key_value_heads
        if groups and heads % groups:
            self.wrong.append(f"{heads} heads are not divided evenly by {groups} key-value heads")
        layers = found.num_hidden_layers
        if layers > _MOST_LAYERS or layers * found.num_experts > _MOST_EXPERTS:
            self.wrong.append(f"{layers} layers of {found.num_experts} experts are too many")
        if self.wrong:
            raise TensorError("Unsupported model", where=self._where, why="\n".join(self.wrong))
        return found
