"""The sizes of a model as its config.json has them, and what of it has no place in these tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..tensor_error import TensorError
from ..untrusted_values import is_size, shown, too_many_layers

DEEPSEEK = "DeepseekV3ForCausalLM"
QWEN = {
    "Qwen2ForCausalLM": "Qwen2.5",
    "Qwen3ForCausalLM": "Qwen3",
    "Qwen3MoeForCausalLM": "Qwen3-MoE",
}


@dataclass(frozen=True)
class ModelDims:
    """Sizes in elements, under config.json's names in brackets.

    Attributes:
        architecture: The class of transformers.
        layers: (num_hidden_layers).
        dense_layers: Layers before the first with experts (first_k_dense_replace); `layers` in a model without.
        key_value_heads: Groups of a grouped-query attention (num_key_value_heads).
        head: (head_dim) of a Qwen.
        query_rank: (q_lora_rank); None: one projection.
        latent_rank: (kv_lora_rank) of a DeepSeek-V3, as are nope, rope and value (qk_nope_head_dim, qk_rope_head_dim,
            v_head_dim).
        biased: Whether the projections of queries, keys and values have biases.
        normed_heads: Whether queries and keys are normalised by head.
        tied: (tie_word_embeddings).
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    ffn: int
    tied: bool
    dense_layers: int
    expert_ffn: int = 0
    experts: int = 0
    shared_experts: int = 0
    key_value_heads: int = 0
    head: int = 0
    query_rank: int | None = None
    latent_rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    biased: bool = False
    normed_heads: bool = False

    def is_dense(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has no experts."""
        return layer < self.dense_layers

    @property
    def uniform(self) -> bool:
        """Whether `torch_dist` has the layers in one tensor, as Megatron-core does for layers that are alike.

        Where `moe_layer_freq` is a list each has keys of its own, alike or not (transformer_block.py:585@core_v0.12.1);
        verl makes one for every DeepSeek-V3 (models/mcore/config_converter.py:303@55e3c5b).
        """
        return self.architecture != DEEPSEEK and self.dense_layers in (0, self.layers)


def model_sizes(config: Mapping[str, Any], where: str) -> ModelDims:
    """Return the sizes of a model.

    Raises:
        TensorError: With everything in its config.json that has no place in the tables of names.
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
    layers = read.size("num_hidden_layers")
    sizes = ModelDims(
        architecture=DEEPSEEK,
        layers=layers,
        dense_layers=min(read.size("first_k_dense_replace", least=0), layers),
        hidden=read.size("hidden_size"),
        heads=read.size("num_attention_heads"),
        vocabulary=read.size("vocab_size"),
        ffn=read.size("intermediate_size"),
        expert_ffn=read.size("moe_intermediate_size"),
        experts=read.size("n_routed_experts"),
        shared_experts=read.size("n_shared_experts"),
        query_rank=None if read.config.get("q_lora_rank") is None else read.size("q_lora_rank"),
        latent_rank=read.size("kv_lora_rank"),
        nope=read.size("qk_nope_head_dim"),
        rope=read.size("qk_rope_head_dim"),
        value=read.size("v_head_dim"),
        tied=bool(read.config.get("tie_word_embeddings", False)),
    )
    read.count(sizes)
    read.done()
    return sizes


def _qwen(name: str, read: _Reader) -> ModelDims:
    mixture = name == "Qwen3MoeForCausalLM"
    layers, hidden, heads = (
        read.size("num_hidden_layers"),
        read.size("hidden_size"),
        read.size("num_attention_heads"),
    )
    if mixture:
        read.refuse("decoder_sparse_step", 1, "every layer has experts")
        if read.config.get("mlp_only_layers"):
            read.wrong.append("`mlp_only_layers` is not empty: every layer has experts in the tables")
    if name != "Qwen2ForCausalLM":
        read.refuse("attention_bias", False, "its projections have no biases")
    given = read.config.get("head_dim") is not None
    sizes = ModelDims(
        architecture=name,
        layers=layers,
        dense_layers=0 if mixture else layers,
        hidden=hidden,
        heads=heads,
        vocabulary=read.size("vocab_size"),
        ffn=read.size("intermediate_size", least=0 if mixture else 1),
        expert_ffn=read.size("moe_intermediate_size") if mixture else 0,
        experts=read.size("num_experts") if mixture else 0,
        key_value_heads=read.size("num_key_value_heads"),
        head=read.size("head_dim") if given else hidden // max(heads, 1),
        biased=name == "Qwen2ForCausalLM",
        normed_heads=name != "Qwen2ForCausalLM",
        tied=bool(read.config.get("tie_word_embeddings", False)),
    )
    if sizes.key_value_heads and heads % sizes.key_value_heads:
        read.wrong.append(f"{heads} heads are not divided evenly by {sizes.key_value_heads} key-value heads")
    read.count(sizes)
    read.done()
    return sizes


class _Reader:
    """Values of a config.json, and what is wrong with them."""

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

    def count(self, sizes: ModelDims) -> None:
        too_many = too_many_layers(sizes.layers, sizes.experts)
        if too_many:
            self.wrong.append(too_many)

    def done(self) -> None:
        if self.wrong:
            raise TensorError("Unsupported model", where=self._where, why="\n".join(self.wrong))
