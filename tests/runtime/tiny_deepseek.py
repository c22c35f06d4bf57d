"""A tiny DeepSeek-V3 as transformers writes it, with weights large enough that a wrong one shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def make(folder: Path, *, shard: str = "100KB", **sizes: Any) -> Path:
    """4 layers, 1 of them dense, 8 experts, 96 tokens, bfloat16, the router's bias in float32; in several files."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    usual = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "max_position_embeddings": 128,
        "num_nextn_predict_layers": 0,
        "initializer_range": 0.3,
    }
    config = DeepseekV3Config(**(usual | sizes))
    config.architectures = ["DeepseekV3ForCausalLM"]
    model = DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers:
        layer.input_layernorm.weight.data.uniform_(0.5, 1.5)
        if hasattr(layer.mlp, "gate"):
            bias = layer.mlp.gate.e_score_correction_bias
            layer.mlp.gate.e_score_correction_bias = bias.float().uniform_(-0.1, 0.1)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def edit(folder: Path, **keys: Any) -> None:
    """Change config.json; None removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
