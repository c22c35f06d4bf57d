"""DeepSeek-V3's layout with tiny tensors: 61 layers, 256 experts, multi-token prediction, FP8 with scales."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import header_bytes
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


def names(layers: int = 61) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of each tensor but the scales."""
    yield "model.embed_tokens.weight", (32, 8), "BF16"
    for layer in range(layers + 1):
        at = f"model.layers.{layer}."
        for name, shape in {"input_layernorm": 8, "post_attention_layernorm": 8}.items():
            yield f"{at}{name}.weight", (shape,), "BF16"
        yield f"{at}self_attn.q_a_layernorm.weight", (4,), "BF16"
        yield f"{at}self_attn.kv_a_layernorm.weight", (4,), "BF16"
        for name, shape in {
            "q_a_proj": (4, 8),
            "q_b_proj": (16, 4),
            "kv_a_proj_with_mqa": (6, 8),
            "kv_b_proj": (16, 4),
            "o_proj": (8, 8),
        }.items():
            yield f"{at}self_attn.{name}.weight", shape, "F8_E4M3"
        networks = {"mlp": 16}
        if layer >= 3:
            yield f"{at}mlp.gate.weight", (256, 8), "BF16"
            yield f"{at}mlp.gate.e_score_correction_bias", (256,), "F32"
            networks = {f"mlp.experts.{n}": 4 for n in range(256)} | {"mlp.shared_experts": 4}
        for name, ffn in networks.items():
            yield f"{at}{name}.gate_proj.weight", (ffn, 8), "F8_E4M3"
            yield f"{at}{name}.up_proj.weight", (ffn, 8), "F8_E4M3"
            yield f"{at}{name}.down_proj.weight", (8, ffn), "F8_E4M3"
    at = f"model.layers.{layers}."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{at}{name}.weight", (8,), "BF16"
    yield f"{at}eh_proj.weight", (8, 16), "BF16"
    yield f"{at}embed_tokens.weight", (32, 8), "BF16"
    yield f"{at}shared_head.head.weight", (32, 8), "BF16"
    yield "model.norm.weight", (8,), "BF16"
    yield "lm_head.weight", (32, 8), "BF16"


def write(folder: Path, shards: int = 8, layers: int = 61) -> Path:
    """Write it; every value depends on its tensor and place."""
    import torch

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    torch.manual_seed(3)
    groups: list[dict[str, tuple[str, torch.Tensor]]] = [{} for _ in range(shards)]
    every = list(names(layers))
    for number, (name, shape, dtype) in enumerate(every):
        values = torch.randn(shape)
        if dtype == "F8_E4M3":
            groups[number * shards // len(every)][name] = dtype, values.to(torch.float8_e4m3fn)
            # The scales lie in another shard.
            other = (number * shards // len(every) + 1) % shards
            groups[other][f"{name}_scale_inv"] = "F32", torch.rand(1, 1) + 0.5
        else:
            kind = torch.float32 if dtype == "F32" else torch.bfloat16
            groups[number * shards // len(every)][name] = dtype, values.to(kind)
    weight_map = {}
    for shard, tensors in enumerate(groups):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        header = header_bytes([(n, d, tuple(t.shape)) for n, (d, t) in tensors.items()], {"format": "pt"})
        data = b"".join(t.view(torch.uint8).numpy().tobytes() for _, t in tensors.values())
        (folder / file).write_bytes(header + data)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
