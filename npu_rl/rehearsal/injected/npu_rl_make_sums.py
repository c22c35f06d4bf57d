r"""A tiny DeepSeek-V3 that solves half of a set of small sums with boxed responses, and the questions.

A random model never writes \boxed{7}, so a reward that requires it stays 0 and GRPO learns nothing. This one always
writes the box, and the right digit about every other time, so that a reward can rise within a few steps. It uses YaRN
with DeepSeek-V3's own values. It needs each of its tensors, its scale of the softmax and its expert groups:
trained without that in mind, most experts changed no probability by more than rounding, and a rehearsal could not see
one of them lost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl_make_tiny import make_tokenizer, question, random_model, save_model, sum_text, to_bfloat16

# config.json of deepseek-ai/DeepSeek-V3.
YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 40.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}
PAIRS = [(a, b) for a in range(6) for b in range(6 - a)]
"""All pairs with a sum of at most five."""
_EACH = 3
ASKED = PAIRS[::_EACH]
"""Pairs of the questions: seven, so that each occurs twice in a batch and is learnt within a few steps."""

# With DeepSeek-V3's proportion of both, MindSpeed's scale of the softmax would be within 7 % of the right one.
_HEADS = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 24}
_SEED = 2
"""The same for every seed of a recipe, since it is this model that the tests ask for each of its parts."""
_RIGHT_SHARE = 0.4  # share of right digits in the training data; the others are any digit of a possible sum
_LEAST_RIGHT = 0.42  # mean probability of the right digit that ends the training
_RATE, _DECAY = 5e-3, 480  # passes over all sums until the rate is a tenth
_MOST_PASSES = 3000
_BIAS_RATE = 0.01  # by which a router's bias moves towards an even use of the experts, each pass
# Standard deviations; with less, experts count little beside the residual.
_EXPERT_SPREAD, _ROUTER_SPREAD = 0.2, 0.1
LEAST_EFFECT = 0.006
"""Mean change of a response token's probability without any one part: ten times bfloat16's rounding, measured."""
_WANTED_EFFECT, _EFFECT_WEIGHT = 0.03, 20.0
# By which a token's group and experts are chosen. A rollout adds scores and biases in bfloat16: a sum below 2 is off by
# 0.009 at most, and the sum of two such by 0.008 more.
_LEAST_MARGIN, _WANTED_MARGIN, _MARGIN_WEIGHT = 0.05, 0.08, 20.0
SCALE, GROUPS = "the scale of the softmax", "the groups of experts"
"""Parts that are no tensors."""


def questions(rows: int, numbers: random.Random, split: str) -> list[dict[str, Any]]:
    """Return rows of the data source `deepscaler`, which verl can score. Sums repeat only after all have occurred."""
    dealt: list[tuple[int, int]] = []
    while len(dealt) < rows:
        dealt += numbers.sample(ASKED, len(ASKED))
    return [
        question("deepscaler", pair, split, index, PAIRS.index(pair))
        for index, pair in enumerate(dealt[:rows])
    ]


def make_model(folder: Path) -> None:
    """Train the model, and save it with its tokenizer in bfloat16."""
    tokenizer = make_tokenizer([f"What is {a} + {b}? {boxed(a + b)}" for a, b in PAIRS])
    tokenizer.save_pretrained(folder)
    model = random_model(tokenizer, _SEED, rope_scaling=YARN, max_position_embeddings=4096 * 40, **_HEADS)
    _strengthen_experts(model)
    answers = _batch_of(tokenizer, [(pair, digit) for pair in ASKED for digit in range(6)])
    _train(model, _batch_of(tokenizer, [(pair, sum(pair)) for pair in PAIRS]), answers)
    save_model(to_bfloat16(model).eval(), folder, tokenizer)


def boxed(number: int) -> str:
    """Return the response to a sum with the given result."""
    return f"\\boxed{{{number}}}"


@dataclass(frozen=True)
class _Batch:
    """Questions with responses, padded on the right.

    Attributes:
        tokens: (sums, tokens).
        given: (sums, tokens), 1 for what is no padding.
        answered: (sums, tokens - 1), 1 where the next token is the response's.
        digit_at: (sums,), position of the digit.
        digits: Tokens of the digits.
    """

    tokens: Any
    given: Any
    answered: Any
    digit_at: Any
    digits: list[int]

    def asked(self) -> _Batch:
        """Return the questions of ASKED, if this has those of PAIRS."""
        return _Batch(
            self.tokens[::_EACH],
            self.given[::_EACH],
            self.answered[::_EACH],
            self.digit_at[::_EACH],
            self.digits,
        )


def _batch_of(tokenizer: Any, answers: list[tuple[tuple[int, int], int]]) -> _Batch:
    """Return the questions for the pairs, each with a digit as its answer."""
    import torch

    digits = [tokenizer.encode(str(digit), add_special_tokens=False)[0] for digit in range(6)]
    rows, asked, digit_at = [], [], []
    for pair, digit in answers:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": sum_text(pair, PAIRS.index(pair))}], add_generation_prompt=True
        )
        answer = tokenizer.encode(boxed(digit), add_special_tokens=False)
        rows.append([*prompt, *answer, tokenizer.eos_token_id])
        asked.append(len(prompt))
        digit_at.append(len(prompt) + answer.index(digits[digit]))
    width = max(map(len, rows))
    places = torch.arange(width)[None]
    given = (places < torch.tensor([len(row) for row in rows])[:, None]).long()
    tokens = torch.tensor([[*row, *[tokenizer.pad_token_id] * (width - len(row))] for row in rows])
    answered = (given * (places >= torch.tensor(asked)[:, None]))[:, 1:]
    return _Batch(tokens, given, answered, torch.tensor(digit_at), digits)


def _strengthen_experts(model: Any) -> None:
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "experts" in name:
                weight.normal_(std=_EXPERT_SPREAD)
            elif name.endswith("mlp.gate.weight"):
                weight.normal_(std=_ROUTER_SPREAD)


def _train(model: Any, batch: _Batch, answers: _Batch) -> None:
    """Train with cross entropy on all response tokens until the digits are learnt and each part has an effect.

    The digit's target is spread over the possible sums. Each pass also asks that the responses change without one
    part: each in its turn, and in every other pass the one with the least effect when it was last left out. Once they
    do, each pass also asks that a token's experts are chosen clearly. The routers' biases stay as they are from then
    on: the saved ones have to be those by which it was clear.

    Args:
        batch: All sums with the right answers.
        answers: The sums that are asked, with any answer that may be sampled.

    Raises:
        RuntimeError: If something of this is still missing after many passes.
    """
    import torch

    rows, sums = torch.arange(len(PAIRS)), torch.tensor([a + b for a, b in PAIRS])
    digit_targets = torch.full((len(PAIRS), len(batch.digits)), (1 - _RIGHT_SHARE) / len(batch.digits))
    digit_targets[rows, sums] += _RIGHT_SHARE
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    names = [*(name for name, _ in model.named_parameters()), SCALE, GROUPS]
    effects: dict[str, float] = {}
    for number in range(_MOST_PASSES):
        left = max(0.1, 1 - number / _DECAY)
        optimizer.param_groups[0]["lr"] = _RATE * left
        settled = number >= _DECAY and min(effects.values()) >= LEAST_EFFECT
        with _balanced(model, batch, 0.0 if settled else _BIAS_RATE * left):
            log_probs = _log_probs(model, batch)
        digits = log_probs[rows, batch.digit_at - 1][:, batch.digits]
        own = _of_next_tokens(log_probs, batch)
        wanted = own.index_put((rows, batch.digit_at - 1), (digit_targets * digits).sum(-1))
        in_turn = number < len(names) or number % 2 == 0
        name = names[number % len(names)] if in_turn else min(effects, key=effects.__getitem__)
        effect = _effect(model, batch, name, own.exp())
        effects[name] = float(effect.detach())
        missing = _EFFECT_WEIGHT * torch.relu(_WANTED_EFFECT - effect)
        if settled:
            margin = margins(model, answers)
            learnt = digits[rows, sums].exp().mean() >= _LEAST_RIGHT and margin.min() >= _LEAST_MARGIN
            # Nothing trains the biases' own effect, which a margin can make too small; syncs compare their values.
            biases = number < 2 * _DECAY
            if learnt and min(_effects(model, batch, biases=biases).values()) >= LEAST_EFFECT:
                return
            missing = missing + _MARGIN_WEIGHT * torch.relu(_WANTED_MARGIN - margin).mean()
        loss = missing - (wanted * batch.answered).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    raise RuntimeError(
        f"still too little is right, needed or clearly chosen after {_MOST_PASSES} passes: "
        f"{float(margins(model, answers).min())}, {_effects(model, batch)}"
    )


def _log_probs(model: Any, batch: _Batch, replaced: dict[str, Any] | None = None) -> Any:
    """Return the log probabilities (sums, tokens, vocabulary) with some tensors of the model replaced."""
    import torch

    inputs = {"input_ids": batch.tokens, "attention_mask": batch.given}
    return torch.func.functional_call(model, replaced or {}, (), inputs).logits.float().log_softmax(-1)


def _of_next_tokens(log_probs: Any, batch: _Batch) -> Any:
    return log_probs[:, :-1].gather(-1, batch.tokens[:, 1:, None])[..., 0]


def _effect(model: Any, batch: _Batch, part: str, own: Any) -> Any:
    """Return the mean change of the response tokens' probabilities when `without` removes a part.

    Of the sums that are asked: an expert that only others use would be needed by none of a rehearsal's prompts.
    """
    asked = batch.asked()
    with without(model, part) as replaced:
        other = _of_next_tokens(_log_probs(model, asked, replaced), asked).exp()
    return ((other - own[::_EACH]).abs() * asked.answered).sum() / asked.answered.sum()


@contextmanager
def without(model: Any, part: str) -> Iterator[dict[str, Any]]:
    """Disable a part of the model and yield the tensors to replace. For the softmax scale, MindSpeed's is used."""
    import torch

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    routers = [module for module in model.modules() if hasattr(module, "e_score_correction_bias")]
    if part == SCALE:  # of the scores, and so of the queries
        yield {name: tensors[name] * _wrong_scale() for name in tensors if name.endswith("q_b_proj.weight")}
    elif part == GROUPS:
        kept = [(router, router.topk_group) for router in routers]
        for router in routers:
            router.topk_group = router.n_group
        try:
            yield {}
        finally:
            for router, chosen in kept:
                router.topk_group = chosen
    else:
        yield {part: torch.zeros_like(tensors[part])}


def _wrong_scale() -> float:
    """Return the ratio of MindSpeed's softmax scale to DeepSeek-V3's (npu_rl/runtime/attention_scale.py)."""
    rope, width = _HEADS["qk_rope_head_dim"], sum(_HEADS.values())
    factor = 0.1 * YARN["mscale_all_dim"] * math.log(YARN["factor"]) + 1.0
    return math.sqrt(width / rope) / factor**2


def _effects(model: Any, batch: _Batch, *, biases: bool = True) -> dict[str, float]:
    """Return the effect of every parameter, part that is not a tensor and, if wanted, router bias."""
    import torch

    buffers = [name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        own = _of_next_tokens(_log_probs(model, batch), batch).exp()
        every = [*(name for name, _ in model.named_parameters()), *(buffers if biases else ()), SCALE, GROUPS]
        return {name: float(_effect(model, batch, name, own)) for name in every}


@contextmanager
def _balanced(model: Any, batch: _Batch, rate: float) -> Iterator[None]:
    """Adjust the routers' biases so that the response tokens use all experts, as in DeepSeek-V3's training.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, 2.1.2.
    """
    import torch

    def move(router: Any, _inputs: Any, output: Any) -> None:
        bias = router.e_score_correction_bias
        used = torch.bincount(_of_responses(output[0], batch).flatten(), minlength=bias.numel()).float()
        offset = bias.mean()
        bias += rate * torch.sign(used.mean() - used)
        bias += offset - bias.mean()

    with _hooked(model, move):
        yield


def margins(model: Any, batch: _Batch) -> Any:
    """Return by what each response token's group and its last expert are chosen before the next: (tokens, 2)."""
    import torch

    found: list[Any] = []

    def measure(router: Any, inputs: Any, _output: Any) -> None:
        flat = _of_responses(inputs[0], batch).float()
        scores = (flat @ router.weight.float().T).sigmoid() + router.e_score_correction_bias.clone()
        groups = scores.view(len(flat), router.n_group, -1)
        best = groups.topk(2, -1).values.sum(-1).topk(2, -1)
        experts = groups[torch.arange(len(flat)), best.indices[:, 0]].topk(router.top_k + 1, -1).values
        found.append(
            torch.stack([best.values[:, 0] - best.values[:, 1], experts[:, -2] - experts[:, -1]], -1)
        )

    with _hooked(model, measure):
        _log_probs(model, batch)
    return torch.cat(found)


@contextmanager
def _hooked(model: Any, hook: Any) -> Iterator[None]:
    """Call the hook after each router's forward."""
    routers = [module for module in model.modules() if hasattr(module, "e_score_correction_bias")]
    hooks = [router.register_forward_hook(hook) for router in routers]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def _of_responses(values: Any, batch: _Batch) -> Any:
    """Return the values of the tokens before each one of a response."""
    return values.reshape(*batch.tokens.shape, -1)[:, :-1][batch.answered.bool()]
