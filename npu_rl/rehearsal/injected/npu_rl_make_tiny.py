"""Common parts of all tiny models and questions: sizes, tokenizer, model files, row format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ["<pad>", "<bos>", "<eos>", "<|User|>", "<|Assistant|>"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% else %}<|Assistant|>{{ m['content'] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)

HEADS = {"qk_nope_head_dim": 24, "qk_rope_head_dim": 8}
_BIAS_OFFSET, _BIAS_NOISE = 4.0, 0.03


def make_tokenizer(texts: list[str] | None = None) -> Any:
    """Return a byte-level tokenizer with a few merges from `texts` (default: small sums). Digits are single tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=WORDS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        texts or [f"What is {a} + {b}? The answer is {a + b}." for a in range(30) for b in range(30)], trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = TEMPLATE
    return fast


def random_model(tokenizer: Any, seed: int, **other: Any) -> Any:
    """Return a random DeepSeek-V3. `other` has further configuration values."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(seed)
    config = DeepseekV3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, moe_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1,
        n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        q_lora_rank=32, kv_lora_rank=32, v_head_dim=32,
        norm_topk_prob=True, routed_scaling_factor=2.5, tie_word_embeddings=False,
        **{"max_position_embeddings": 512, "rope_scaling": None, **HEADS, **_special_tokens(tokenizer), **other},
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config)
    for bias in router_biases(model):
        # An offset as training leaves behind, and differences that bfloat16 has no room for beside it.
        bias.copy_(_BIAS_OFFSET + _BIAS_NOISE * torch.rand_like(bias))
    return model


def random_qwen(kind: str, tokenizer: Any, seed: int) -> Any:
    """Return a random tiny-qwen2, tiny-qwen3 or tiny-qwen3-moe: two layers, 4 query heads, 2 key-value heads."""
    import torch
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {} if kind == "tiny-qwen2" else {"head_dim": 32}
    if kind == "tiny-qwen3-moe":
        sizes |= {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        }
        sizes["decoder_sparse_step"] = 1
    name = {"tiny-qwen2": "Qwen2", "tiny-qwen3": "Qwen3", "tiny-qwen3-moe": "Qwen3Moe"}[kind]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=False, **_special_tokens(tokenizer), **sizes,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(config)


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}


def router_biases(model: Any) -> list[Any]:
    """Return the correction biases of a DeepSeek-V3's routers."""
    return [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]


def to_bfloat16(model: Any) -> Any:
    """Convert the model to bfloat16, except the routers' biases, which are float32 in DeepSeek's checkpoint."""
    import torch

    precise = [bias.clone() for bias in router_biases(model)]
    model = model.to(torch.bfloat16)
    for bias, values in zip(router_biases(model), precise, strict=True):
        bias.data = values
    return model


def save_model(model: Any, folder: Path, tokenizer: Any) -> None:
    """Save the model as safetensors; a DeepSeek-V3 with the keys that vLLM 0.9.1 and cann's verl_patches read."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    if model.config.model_type != "deepseek_v3":
        return
    # Keys of DeepSeek's own config.json that transformers 4.52 drops.
    place = folder / "config.json"
    values = json.loads(place.read_text())
    values.update(
        moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", num_nextn_predict_layers=0,
        aux_loss_alpha=0.001, seq_aux=True, ep_size=1, hidden_act="silu",
    )  # fmt: skip
    if yarn := values.get(
        "rope_scaling"
    ):  # whole numbers there, and what reads them as arguments wants no others
        yarn.update({name: int(yarn[name]) for name in ("beta_fast", "beta_slow", "factor")})
    place.write_text(json.dumps(values, indent=2) + "\n")


_FILLERS = (0, 22, 3, 15, 8)
"""Tokens before a question, which has ten itself: prompts of unequal length, one of 32, the limit in a rehearsal."""


def sum_text(pair: tuple[int, int], number: int) -> str:
    """Return the question for a sum; its length depends on the number."""
    size = _FILLERS[number % len(_FILLERS)]
    return f"{'o' * (size - 1)}{' ' * bool(size)}What is {pair[0]} + {pair[1]}?"


def question(source: str, pair: tuple[int, int], split: str, index: int, number: int) -> dict[str, Any]:
    """Return one row in verl's format: data_source, prompt, ability, reward_model, extra_info.

    Args:
        number: As of `sum_text`.
    """
    a, b = pair
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": sum_text(pair, number)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"split": split, "index": index},
    }
