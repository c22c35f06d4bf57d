"""A tiny DeepSeek-V3 that half knows small sums and boxes its answers, and questions for it.

A random model never writes \\boxed{7}, so a reward that asks for it stays 0 and GRPO learns nothing. This one writes
the box every time and the right digit about every other time: enough for a reward to rise from in a few steps. Its
positions are YaRN's, with DeepSeek-V3's own values.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from npu_rl_make_tiny import make_tokenizer, question, random_model, save_model

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
"""The sums up to five: few enough to see each one often."""

_KNOWN = 0.4  # share of the answers it was taught that are right; the others are any digit that a sum can be
_PASSES, _RATE = 360, 5e-3  # over all sums, the rate going down to nothing; 8 s on one core


def questions(rows: int, numbers: random.Random, split: str) -> list[dict[str, Any]]:
    """Rows of the data source `deepscaler`, which has a reward of its own. No sum comes twice before each came once."""
    dealt: list[tuple[int, int]] = []
    while len(dealt) < rows:
        dealt += numbers.sample(PAIRS, len(PAIRS))
    return [question("deepscaler", pair, split, index) for index, pair in enumerate(dealt[:rows])]


def make_model(folder: Path, seed: int) -> None:
    """Teach it, and save it with its tokenizer, in bfloat16."""
    import torch

    tokenizer = make_tokenizer([f"What is {a} + {b}? {boxed(a + b)}" for a, b in PAIRS])
    tokenizer.save_pretrained(folder)
    model = random_model(tokenizer, seed, rope_scaling=YARN, max_position_embeddings=4096 * 40)
    _teach(model.train(), tokenizer)
    save_model(model.to(torch.bfloat16).eval(), folder, tokenizer)


def boxed(number: int) -> str:
    return f"\\boxed{{{number}}}"


def _teach(model: Any, tokenizer: Any) -> None:
    """Cross entropy on every token of the answer; the digit's target is spread over the six that a sum can be."""
    import torch

    tokens, digit_at, digits = _lesson(tokenizer)
    sums = torch.tensor([a + b for a, b in PAIRS])
    spread = torch.full((len(PAIRS), len(digits)), (1 - _KNOWN) / len(digits))
    spread[torch.arange(len(PAIRS)), sums] += _KNOWN
    asked = next(i for i in range(tokens.shape[1]) if tokens[0, i] == _answer_begins(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, _PASSES)
    for _ in range(_PASSES):
        said = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.float().log_softmax(-1)
        likely = said[:, asked:-1].gather(-1, tokens[:, asked + 1 :, None])[..., 0]
        likely[:, digit_at - asked - 1] = (spread * said[:, digit_at - 1][:, digits]).sum(-1)
        loss = -likely.sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        slower.step()


def _lesson(tokenizer: Any) -> tuple[Any, int, list[int]]:
    """All questions with their right answers (sums, tokens), where the digit stands, and the digits' tokens."""
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


def _answer_begins(tokenizer: Any) -> int:
    token: int = tokenizer.convert_tokens_to_ids("<|Assistant|>")
    return token
