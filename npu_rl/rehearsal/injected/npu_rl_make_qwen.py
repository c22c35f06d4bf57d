"""Tiny Qwen models for a rehearsal: the smallest sizes that keep the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def random_qwen(kind: str, tokenizer: Any, seed: int) -> Any:
    """Return a random tiny-qwen2, tiny-qwen3 or tiny-qwen3-moe: two layers, 4 query heads, 2 key-value heads."""
    import torch
    import transformers

    torch.manual_seed(seed)
    size = len(tokenizer)
    sizes = {
        "vocab_size": size + (-size) % 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if kind != "tiny-qwen2":
        sizes["head_dim"] = 32
    if kind == "tiny-qwen3-moe":
        sizes |= {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
        }
    name = {"tiny-qwen2": "Qwen2", "tiny-qwen3": "Qwen3", "tiny-qwen3-moe": "Qwen3Moe"}[kind]
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def save_qwen(model: Any, folder: Path, tokenizer: Any) -> None:
    """Save the model as safetensors."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
