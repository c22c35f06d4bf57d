r"""A tiny DeepSeek-V3 that boxes its responses and gets half of the small sums right, and questions for it.

A random model never writes \boxed{7}, so a reward that requires it stays 0 and GRPO learns nothing. This one always
writes the box, and the right digit about every other time, so that a reward can rise within a few steps. It uses YaRN
with DeepSeek-V3's own values.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from npu_rl_make_tiny import make_tokenizer, question, random_model, save_model, to_bfloat16

# config.json of deepseek-ai/DeepSeek-V3.
YARN = {
    "type": "yarn",
    "factor": 40.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}
PAIRS = [(a, b) for a in range(6) for b in range(6 - a)]
"""All pairs with a sum of at most five, few enough to occur often."""

_RIGHT_SHARE = 0.4  # share of right digits in the training data; the others are any digit of a possible sum
_PASSES, _RATE = 360, 5e-3  # over all sums, with a decaying rate; 8 s on one core


def questions(rows: int, numbers: random.Random, split: str) -> list[dict[str, Any]]:
    """Return rows of the data source `deepscaler`, which verl can score; each sum occurs before one is repeated."""
    dealt: list[tuple[int, int]] = []
    while len(dealt) < rows:
        dealt += numbers.sample(PAIRS, len(PAIRS))
    return [question("deepscaler", pair, split, index) for index, pair in enumerate(dealt[:rows])]


def make_model(folder: Path, seed: int) -> None:
    """Train the model, and save it with its tokenizer in bfloat16."""
    tokenizer = make_tokenizer([f"What is {a} + {b}? {boxed(a + b)}" for a, b in PAIRS])
    tokenizer.save_pretrained(folder)
    model = random_model(tokenizer, seed, rope_scaling=YARN, max_position_embeddings=4096 * 40)
    _train(model.train(), tokenizer)
    save_model(to_bfloat16(model).eval(), folder, tokenizer)


def boxed(number: int) -> str:
    """Return the response to a sum with this result."""
    return f"\\boxed{{{number}}}"


def _train(model: Any, tokenizer: Any) -> None:
    """Train with cross entropy on every token of the response; the digit's target is spread over the possible sums."""
    import torch

    tokens, digit_at, digits = _training_batch(tokenizer)
    sums = torch.tensor([a + b for a, b in PAIRS])
    digit_targets = torch.full((len(PAIRS), len(digits)), (1 - _RIGHT_SHARE) / len(digits))
    digit_targets[torch.arange(len(PAIRS)), sums] += _RIGHT_SHARE
    asked = next(i for i in range(tokens.shape[1]) if tokens[0, i] == _assistant_token(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, _PASSES)
    for _ in range(_PASSES):
        log_probs = (
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.float().log_softmax(-1)
        )
        target_log_probs = log_probs[:, asked:-1].gather(-1, tokens[:, asked + 1 :, None])[..., 0]
        target_log_probs[:, digit_at - asked - 1] = (
            digit_targets * log_probs[:, digit_at - 1][:, digits]
        ).sum(-1)
        loss = -target_log_probs.sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _training_batch(tokenizer: Any) -> tuple[Any, int, list[int]]:
    """Return all questions with right responses as (sums, tokens), the digit's position, and the digits' tokens."""
    import torch

    digits = [tokenizer.encode(str(digit), add_special_tokens=False)[0] for digit in range(6)]
    rows = []
    for a, b in PAIRS:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"What is {a} + {b}?"}], add_generation_prompt=True
        )
        answer = tokenizer.encode(boxed(a + b), add_special_tokens=False)
        rows.append([*asked, *answer, tokenizer.eos_token_id])
    place = len(asked) + answer.index(digits[a + b])
    return torch.tensor(rows), place, digits


def _assistant_token(tokenizer: Any) -> int:
    token: int = tokenizer.convert_tokens_to_ids("<|Assistant|>")
    return token
