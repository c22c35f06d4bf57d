"""The rollout-actor probability difference for cann-recipes-train's trainer, which doesn't compute one.

verl's metric is of the actor's log probabilities before the update, which this trainer leaves out
(`recompute_old_log_prob: false`, verl_patches/trainer/ppo/ray_trainer.py:363@bcd3be7). Here they are those of the
update's own first pass, and the rollout's are its engine's; each rank compares the responses that its engine sampled.
A row that no rank's engine sampled ends the training: a response that is given to another prompt would be left out of
the comparison. Real: both probabilities.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from types import ModuleType
from typing import Any

from .hooks import after_import
from .used import count

ACTOR = "verl_patches.workers.actor.megatron_actor"
METRIC = "training/rollout_probs_diff_mean"

_Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens of a prompt and of its response."""

_sampled: dict[_Row, list[float]] = {}
"""The engine's log probabilities of the last generation's responses."""
_times: Counter[_Row] = Counter()
"""How often the engine sampled each of them."""


class UnsampledRowError(RuntimeError):
    """The trainer updates with responses that the rollout did not give to their prompts."""


def install() -> None:
    """Make verl_patches' actor report verl's metric in its update."""
    after_import(ACTOR, _install_in)


def _install_in(module: ModuleType) -> None:
    after_import("vllm.entrypoints.llm", _keep_log_probs)
    actor, log_probs_of = module.MegatronPPOActor, module.vocab_parallel_log_probs_from_logits
    forward_backward_batch, update_policy = actor.forward_backward_batch, actor.update_policy
    comparison: list[_Comparison] = []

    @functools.wraps(log_probs_of)
    def compared(logits: Any, responses: Any) -> Any:
        found = log_probs_of(logits, responses)
        if comparison:
            comparison[0].add(found.detach(), responses)
        return found

    @functools.wraps(forward_backward_batch)
    def with_rows(self: Any, data: Any, *arguments: Any, **named: Any) -> Any:
        if comparison and not comparison[0].begin(data.batch):
            comparison.clear()  # the update's second batch, for which the weights have changed
        return forward_backward_batch(self, data, *arguments, **named)

    @functools.wraps(update_policy)
    def reporting(self: Any, *arguments: Any, **named: Any) -> Any:
        mine = _Comparison()
        comparison[:] = [mine]
        try:
            metrics = update_policy(self, *arguments, **named)
        finally:
            comparison.clear()
        return mine.report(metrics)

    module.vocab_parallel_log_probs_from_logits = compared  # type: ignore[attr-defined]
    actor.forward_backward_batch, actor.update_policy = with_rows, reporting


def _keep_log_probs(module: ModuleType) -> None:
    upstream = module.LLM.generate

    @functools.wraps(upstream)
    def generate(self: Any, *arguments: Any, **named: Any) -> Any:
        requests = upstream(self, *arguments, **named)
        _sampled.clear()
        _times.clear()
        for request in requests:
            for response in request.outputs:
                steps = zip(response.token_ids, response.logprobs or [], strict=False)
                key = (tuple(request.prompt_token_ids), tuple(response.token_ids))
                _times[key] += 1
                _sampled[key] = [step[token].logprob for token, step in steps]
        return requests

    module.LLM.generate = generate


class _Comparison:
    """The mean difference over the rows of one batch, whose micro batches arrive in order."""

    def __init__(self) -> None:
        self._keys: list[_Row] | None = None
        self._done = 0
        self._sum, self._tokens = 0.0, 0

    def begin(self, batch: Any) -> bool:
        """Store the batch's rows; returns False if an earlier batch is stored.

        Raises UnsampledRowError. This is a collective call.
        """
        if self._keys is not None:
            return False
        width = batch["responses"].shape[1]
        given = batch["attention_mask"].bool()
        rows = [row[mask].tolist() for row, mask in zip(batch["input_ids"], given, strict=True)]
        lengths = given[:, -width:].sum(-1).tolist()
        self._keys = [
            (tuple(row[: len(row) - length]), tuple(row[len(row) - length :]))
            for row, length in zip(rows, lengths, strict=True)
        ]
        _require_sampled(self._keys)
        return True

    def add(self, log_probs: Any, responses: Any) -> None:
        """Compare the next micro batch: log_probs and responses are (rows, tokens)."""
        import torch

        keys = (self._keys or [])[self._done : self._done + len(responses)]
        self._done += len(responses)
        for key, row in zip(keys, log_probs.float(), strict=True):
            sampled = _sampled.get(key)
            if sampled:
                other = torch.tensor(sampled, device=row.device)
                self._sum += float((row[: len(sampled)].exp() - other.exp()).abs().sum())
                self._tokens += len(sampled)

    def report(self, metrics: Any) -> Any:
        """Return the metrics with the mean difference, if this rank's engine sampled some of the rows."""
        if not self._tokens:
            return metrics
        count("verl_patches.update_probabilities")
        return {**metrics, METRIC: [self._sum / self._tokens]}


def _require_sampled(rows: list[_Row]) -> None:
    import torch

    own = (Counter(rows if _is_first_of_its_model() else []), _times)
    ranks = [own]
    if torch.distributed.is_initialized():
        ranks = [own] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(ranks, own)
    updated, sampled = Counter[_Row](), Counter[_Row]()
    for of_update, of_rollout in ranks:
        updated += of_update
        sampled += of_rollout
    missing = updated - sampled
    if sampled and missing:
        raise UnsampledRowError(
            f"{missing.total()} of the {updated.total()} rows of the update are not responses that the rollout gave to "
            "their prompts"
        )


def _is_first_of_its_model() -> bool:
    """Return whether this is the first of the ranks that hold one copy of the model, which all have the same rows."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return True
    ranks = (
        state.get_tensor_model_parallel_rank(),
        state.get_pipeline_model_parallel_rank(),
        state.get_context_parallel_rank(),
    )
    return not any(ranks)
