"""Rows of a batch: groups of one prompt and n responses, and each response with the prompt it was generated for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

import torch

from .difference import Difference, report
from .step_batch import StepBatch, Tokens

GROUPS, PROMPTS, LABELS = "groups", "prompts of responses", "labels of prompts"
KEPT = "groups kept by dynamic sampling"


def require_groups(batch: StepBatch, responses: int) -> None:
    """Report a group with several prompts, or with another number of rows than `responses`.

    Two groups may have equal prompts: a batch of the data may.
    """
    groups = list(batch.labels["uid"])
    prompts: dict[Hashable, Tokens] = {}
    for row, (group, prompt) in enumerate(zip(groups, batch.prompts(), strict=True)):
        if prompts.setdefault(group, prompt) != prompt:
            mistake = "groups are mixed over prompts: the rows' order and that of their groups differ"
            report(Difference(GROUPS, prompt, prompts[group], mistake=mistake, row=row, step=batch.step))
    for group, rows in Counter(groups).items():
        if rows != responses:
            mistake = "a group's responses are lost or in another group"
            row = groups.index(group)
            report(Difference(GROUPS, rows, responses, mistake=mistake, row=row, step=batch.step))


def require_unequal(batch: StepBatch, metric: str, scores: torch.Tensor) -> None:
    """Report a group of several responses that all have the same value of the metric (DAPO, eq. 11).

    Args:
        metric: Name of the column with it, or of the sum of rewards where no column has it.
        scores: Sum of each row's rewards.
    """
    groups = list(batch.labels["uid"])
    values: dict[Hashable, list[float]] = {}
    for group, value in zip(groups, batch.labels.get(metric, scores.tolist()), strict=True):
        values.setdefault(group, []).append(float(value))
    for group, own in values.items():
        if len(own) > 1 and len(set(own)) == 1:
            mistake = "a group without a difference between its responses was kept"
            row = groups.index(group)
            report(
                Difference(
                    KEPT, f"{metric} {own}", "several values", mistake=mistake, row=row, step=batch.step
                )
            )


def require_generated(batch: StepBatch, generated: Collection[tuple[Tokens, Tokens]]) -> None:
    """Report a row whose response was not generated for its prompt.

    Args:
        generated: Prompts and responses that the rollout returned.
    """
    prompts_of: dict[Tokens, Tokens] = {response: prompt for prompt, response in generated}
    for row, pair in enumerate(zip(batch.prompts(), batch.responses(), strict=True)):
        if pair not in generated:
            prompt, response = pair
            mistake = "the response belongs to another prompt" if response in prompts_of else ""
            want = prompts_of.get(response, "no such response")
            report(Difference(PROMPTS, prompt, want, mistake=mistake, row=row, step=batch.step))


def require_labels(batch: StepBatch, known: Mapping[Tokens, Collection[str]]) -> None:
    """Report a row whose right answer is not one that the data has for its prompt.

    Args:
        known: The data's right answers, as text, by prompt.
    """
    for row, (prompt, label) in enumerate(zip(batch.prompts(), batch.labels["reward_model"], strict=True)):
        if prompt in known and (found := answer(label)) not in known[prompt]:
            want = " or ".join(sorted(known[prompt]))
            mistake = "the row's right answer belongs to another prompt"
            report(Difference(LABELS, found, want, mistake=mistake, row=row, step=batch.step))


def answer(label: object) -> str:
    """Return the right answer of a row of verl's data, as text."""
    return str(label.get("ground_truth") if isinstance(label, Mapping) else label)
