"""Tiny random models, and what transformers says of them in float32: the reference of the engine's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

YARN = {
    "type": "yarn",
    "factor": 40.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 32,
}
# Weights large enough that attention, rotation and routing all move the logits by far more than the tolerances.
SPREAD = 0.12


def deepseek(folder: Path, seed: int, yarn: bool = False) -> Any:
    """A DeepSeek-V3 with MLA, one dense and two mixture-of-experts layers, grouped sigmoid routing with a bias."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(seed)
    config = DeepseekV3Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3,
        n_group=4, topk_group=2, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=24, max_position_embeddings=1280, norm_topk_prob=True,
        routed_scaling_factor=2.5, rope_scaling=dict(YARN) if yarn else None, tie_word_embeddings=False,
        initializer_range=SPREAD, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.05 * torch.randn_like(buffer))
    said = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    return _saved(model, folder, {**said, "num_nextn_predict_layers": 0})


def llama(folder: Path, seed: int) -> Any:
    """A dense Llama with grouped-query attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=SPREAD,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return _saved(LlamaForCausalLM(config).eval(), folder, {})


def _saved(model: Any, folder: Path, extra: dict[str, Any]) -> Any:
    """Saved with weights that bfloat16 has, so that engines of both types hold the same; as config.json, what
    DeepSeek's own has and transformers leaves out."""
    import torch

    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not name.endswith("inv_freq"):
                tensor.copy_(tensor.bfloat16())
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    place = folder / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **extra}))
    return type(model).from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()


def _tokenizer() -> Any:
    """One word for each number of the vocabulary: the engine wants a tokenizer although it is given numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="w0", bos_token="w1", eos_token="w2", unk_token="w0"
    )


def judged(
    model: Any, prompt: list[int], answer: list[int], temperature: float = 1.0
) -> tuple[list[float], list[float]]:
    """For each token of the answer its log probability, in float32, and how far that is below the best token's."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
    logs = (logits / temperature).log_softmax(-1)
    own = logs[torch.arange(len(answer)), answer]
    return own.tolist(), (logs.max(-1).values - own).tolist()
