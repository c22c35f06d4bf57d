"""Responses of a rollout with the prompts that its engine sampled them for, in each worker.

verl's rollouts take responses out of the engine, pad them and repeat the prompts beside them (vllm_rollout_spmd.py and
hf_rollout.py in verl/workers/rollout@v0.5.0). What the driver then has is checked by `batch_rows`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from npu_rl_standins.hooks import after_import

from .counts import compared
from .difference import Difference, report
from .step_batch import StepBatch, Tokens

SAMPLED = "sampled responses"
Rows = Iterator[tuple[Tokens, Tokens]]


def install() -> None:
    """Compare what the rollouts with vLLM and with transformers return."""
    vllm = "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd"
    after_import(vllm, lambda module: _watch(module.vLLMRollout, "inference_engine", _rows_of_requests))
    transformers = "verl.workers.rollout.hf_rollout"
    after_import(transformers, lambda module: _watch(module.HFRollout, "module", _rows_of_sequences))


def _watch(rollout_class: Any, engine_name: str, rows: Callable[[Any, dict[str, Any]], Rows]) -> None:
    upstream = rollout_class.generate_sequences

    @functools.wraps(upstream)
    def generate_sequences(rollout: Any, prompts: Any, *arguments: Any, **named: Any) -> Any:
        padding = getattr(rollout, "pad_token_id", prompts.meta_info.get("pad_token_id"))
        engine, sampled = getattr(rollout, engine_name), Counter[tuple[Tokens, Tokens]]()
        generate = engine.generate

        def recorded(*of_engine: Any, **named_of_engine: Any) -> Any:
            result = generate(*of_engine, **named_of_engine)
            sampled.update((prompt, _stripped(row, padding)) for prompt, row in rows(result, named_of_engine))
            return result

        engine.generate = recorded
        try:
            data = upstream(rollout, prompts, *arguments, **named)
        finally:
            engine.generate = generate
        _require_sampled(data, sampled, padding)
        return data

    rollout_class.generate_sequences = generate_sequences


def _require_sampled(data: Any, sampled: Counter[tuple[Tokens, Tokens]], padding: int) -> None:
    batch = StepBatch(dict(data.batch.items()), {}, 0)
    rows = [
        (prompt, _stripped(tuple(response), padding))
        for prompt, response in zip(batch.prompts(), batch.tensors["responses"].tolist(), strict=True)
    ]
    for row, pair in enumerate(rows):
        if sampled[pair] == 0:
            want = next((prompt for prompt, response in sampled if response == pair[1]), "no such response")
            mistake = "the response belongs to another prompt" if isinstance(want, tuple) else ""
            report(Difference(SAMPLED, pair[0], want, mistake=mistake, row=row))
        sampled[pair] -= 1
    compared(SAMPLED)


def _rows_of_requests(requests: Any, _: dict[str, Any]) -> Rows:
    """Yield prompt and response of vLLM's requests."""
    for request in requests:
        for response in request.outputs:
            yield tuple(request.prompt_token_ids), tuple(response.token_ids)


def _rows_of_sequences(result: Any, named: dict[str, Any]) -> Rows:
    """Yield prompt and response of transformers' sequences, which may be several a prompt."""
    prompts, masks = named["input_ids"], named["attention_mask"].bool()
    each = len(result.sequences) // len(prompts)
    for row, sequence in enumerate(result.sequences):
        prompt = prompts[row // each][masks[row // each]]
        yield tuple(prompt.tolist()), tuple(sequence[prompts.shape[1] :].tolist())


def _stripped(tokens: Tokens, padding: int) -> Tokens:
    length = len(tokens)
    while length and tokens[length - 1] == padding:
        length -= 1
    return tokens[:length]
