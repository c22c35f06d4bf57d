"""Make a tiny model and questions for a rehearsal, in the training interpreter: no download, no network.

    python -m npu_rl_make FOLDER SEED ROWS

FOLDER gets model/ (a random DeepSeek-V3 with its tokenizer, about 170,000 parameters), train.parquet and
test.parquet. The sizes are the smallest that keep what makes the architecture: MLA with both ranks, one dense and
one mixture-of-experts layer with a shared expert and grouped top-k. qk_nope + qk_rope is 32, the least head vLLM
takes. The same seed and package versions give the same bytes.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

WORDS = ["<pad>", "<bos>", "<eos>", "<|User|>", "<|Assistant|>"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% else %}<|Assistant|>{{ m['content'] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)


def main() -> None:
    folder, seed, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    model = folder / "model"
    model.mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(model)
    make_model(model, tokenizer, seed)
    numbers = random.Random(seed)
    make_questions(folder / "train.parquet", rows, numbers, "train")
    make_questions(folder / "test.parquet", 16, numbers, "test")


def make_tokenizer() -> Any:
    """Bytes and a few merges of small sums; digits stay single."""
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
        [f"What is {a} + {b}? The answer is {a + b}." for a in range(30) for b in range(30)], trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(folder: Path, tokenizer: Any, seed: int) -> None:
    """A random DeepSeek-V3, saved as safetensors with its configuration."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(seed)
    size = len(tokenizer)
    config = DeepseekV3Config(
        vocab_size=size + (-size) % 64, hidden_size=64, intermediate_size=128, moe_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1,
        n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=32,
        max_position_embeddings=512, norm_topk_prob=True, routed_scaling_factor=2.5, rope_scaling=None,
        tie_word_embeddings=False, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    # What DeepSeek's own config.json has and vLLM 0.9.1 reads, and transformers 4.52 leaves out.
    place = folder / "config.json"
    values = json.loads(place.read_text())
    values.update(
        moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", num_nextn_predict_layers=0
    )
    place.write_text(json.dumps(values, indent=2) + "\n")


def make_questions(place: Path, rows: int, numbers: random.Random, split: str) -> None:
    """Rows as verl reads them: data_source, prompt, ability, reward_model, extra_info."""
    import pyarrow
    import pyarrow.parquet

    made = []
    for index in range(rows):
        a, b = numbers.randint(0, 9), numbers.randint(0, 9)
        made.append(
            {
                "data_source": "npu-rl/digit-questions",
                "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": split, "index": index},
            }
        )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), place)


if __name__ == "__main__":
    main()
