"""The sizes of a DeepSeek-V3 as its config.json has them, and what of it can't be converted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConversionError

NAME = "DeepseekV3ForCausalLM"


@dataclass(frozen=True)
class Architecture:
    """Sizes in elements, under config.json's names in brackets.

    layers (num_hidden_layers), dense_layers (first_k_dense_replace, at most layers), hidden, heads, vocabulary,
    ffn (intermediate_size), expert_ffn (moe_intermediate_size), experts (n_routed_experts), shared_experts
    (n_shared_experts), query_rank (q_lora_rank; None: one projection), latent_rank (kv_lora_rank), nope, rope and
    value (qk_nope_head_dim, qk_rope_head_dim, v_head_dim), tied (tie_word_embeddings).
    """

    layers: int
    dense_layers: int
    hidden: int
    heads: int
    vocabulary: int
    ffn: int
    expert_ffn: int
    experts: int
    shared_experts: int
    query_rank: int | None
    latent_rank: int
    nope: int
    rope: int
    value: int
    tied: bool

    def is_dense(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has no experts."""
        return layer < self.dense_layers


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder. Raises ConversionError where there is none."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConversionError(
            f"{folder} has no config.json: name the folder of a Hugging Face model"
        ) from None
    except (OSError, ValueError) as error:
        raise ConversionError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConversionError(f"{path} holds no JSON object")
    return config


def read_architecture(folder: Path) -> Architecture:
    """The sizes of the model in `folder`. Raises ConversionError with everything that can't be converted."""
    config = read_config(folder)
    wrong = _unsupported(config)
    sizes = {
        field: _size(config, key, wrong)
        for field, key in {
            "layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "heads": "num_attention_heads",
            "vocabulary": "vocab_size",
            "ffn": "intermediate_size",
            "expert_ffn": "moe_intermediate_size",
            "experts": "n_routed_experts",
            "shared_experts": "n_shared_experts",
            "latent_rank": "kv_lora_rank",
            "nope": "qk_nope_head_dim",
            "rope": "qk_rope_head_dim",
            "value": "v_head_dim",
        }.items()
    }
    dense = _size(config, "first_k_dense_replace", wrong, least=0)
    query_rank = None if config.get("q_lora_rank") is None else _size(config, "q_lora_rank", wrong)
    if wrong:
        raise ConversionError(f"{folder / 'config.json'}: " + "; ".join(wrong))
    return Architecture(
        dense_layers=min(dense, sizes["layers"]),
        query_rank=query_rank,
        tied=bool(config.get("tie_word_embeddings", False)),
        **sizes,
    )


def _unsupported(config: dict[str, Any]) -> list[str]:
    """What verl or Megatron-core 0.12.1 has no place for (verl/models/mcore/config_converter.py:307-314@55e3c5b)."""
    wrong = []
    if config.get("architectures") != [NAME]:
        wrong.append(f"`architectures` is {config.get('architectures')!r}, only [{NAME!r}] is converted here")
    if config.get("quantization_config"):
        wrong.append(
            "`quantization_config` is set, so the weights are quantised: dequantise them to bfloat16, and remove it"
        )
    if config.get("num_nextn_predict_layers"):
        wrong.append(
            "`num_nextn_predict_layers` is not 0, which verl refuses: set it to 0 (their tensors may stay)"
        )
    if config.get("attention_bias"):
        wrong.append("`attention_bias` is true: verl's model has no biases of the attention")
    if config.get("moe_layer_freq", 1) != 1:
        wrong.append(
            "`moe_layer_freq` is not 1: verl's model has experts in every layer after the dense ones"
        )
    return wrong


def _size(config: dict[str, Any], key: str, wrong: list[str], least: int = 1) -> int:
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    wrong.append(f"`{key}` is {value!r}, not a whole number from {least}")
    return 0
