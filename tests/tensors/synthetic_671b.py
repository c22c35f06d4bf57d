"""DeepSeek-V3's layout: 61 layers, 256 experts, multi-token prediction; with tiny tensors, and as published."""

from __future__ import annotations

from tests.tensors.megatron_checkpoints import DEEPSEEK

CONFIG = DEEPSEEK | {
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "moe_intermediate_size": 4,
    "num_hidden_layers": 61,
    "num_attention_heads": 4,
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
    "q_lora_rank": 4,
    "kv_lora_rank": 4,
    "qk_rope_head_dim": 2,
    "qk_nope_head_dim": 2,
    "v_head_dim": 2,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
PUBLISHED = CONFIG | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
TENSORS = 46_183  # as Megatron-Bridge counts them (NVIDIA-NeMo/Megatron-Bridge#5790)
FP8 = 45_808
