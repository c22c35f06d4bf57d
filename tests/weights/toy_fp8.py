"""A toy DeepSeek-V3 in FP8, as published: E4M3 with scales, odd edges, a layer of multi-token prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tensors import megatron_checkpoints
from tests.weights import tiny_checkpoint

CONFIG: dict[str, Any] = tiny_checkpoint.CONFIG | {
    "vocab_size": 64,
    "hidden_size": 136,
    "intermediate_size": 264,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 140,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
}


def write(folder: Path, config: dict[str, Any] = CONFIG, shards: int = 4) -> Path:
    """Write it; the scales of each shard's weights lie in the next shard."""
    import torch
    from safetensors.torch import save_file

    groups: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    every = tensors(config)
    for number, (name, tensor) in enumerate(every.items()):
        shard = number * shards // len(every)
        groups[shard][name] = tensor
        if tensor.dtype == torch.float8_e4m3fn:
            blocks = [-(-size // 128) for size in tensor.shape]
            groups[(shard + 1) % shards][f"{name}_scale_inv"] = torch.rand(blocks) * 0.02 + 1e-5
    folder.mkdir(parents=True)
    weight_map = {}
    for number, group in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file(group, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(group, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tensors(config: dict[str, Any]) -> dict[str, Any]:
    """All tensors but the scales: projections in E4M3 with any code that is a number, the rest in BF16 and F32."""
    import torch

    layers = config["num_hidden_layers"]
    found = megatron_checkpoints.hf_tensors(config | {"num_hidden_layers": layers + 1})
    at, hidden = f"model.layers.{layers}.", config["hidden_size"]
    for name in ("enorm", "hnorm", "shared_head.norm"):
        found[f"{at}{name}.weight"] = torch.randn(hidden).bfloat16()
    found[f"{at}eh_proj.weight"] = torch.randn(hidden, 2 * hidden).bfloat16()
    for name in ("embed_tokens", "shared_head.head"):
        found[f"{at}{name}.weight"] = torch.randn(config["vocab_size"], hidden).bfloat16()
    numbers = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    for name, tensor in found.items():
        if "_proj" in name and not name.endswith("eh_proj.weight"):
            codes = numbers[torch.randint(len(numbers), tuple(tensor.shape))]
            found[name] = codes.view(torch.float8_e4m3fn)
    return found


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(n): n for n in range(CONFIG["vocab_size"])}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1").save_pretrained(folder)
