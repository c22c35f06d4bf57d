"""Rewards of a batch: the reward manager called again on a copy, and what the trainer makes of its result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import numpy as np
import torch

from .difference import Difference, report, require_equal
from .step_batch import StepBatch

REWARDS, TOKEN_REWARDS = "rewards", "rewards of tokens"
TIMED_OUT = "rewards whose comparison timed out"
_TOLERANCE = 1e-6
_TENSORS = ("prompts", "responses", "attention_mask", "input_ids", "position_ids")


def require_rewards(
    batch: StepBatch, manager: Callable[[Any], Any], columns: Collection[str], late: int
) -> int:
    """Report a row whose reward isn't what the reward manager returns for it among rows in another order.

    Args:
        manager: The trainer's reward manager.
        columns: The batch's columns that the data has: others may be its results.
        late: Number of comparisons that ran out of time in the trainer's call; so many rows may differ.

    Returns:
        The number of rows that differ and were left out for that.
    """
    got = batch.tensors["token_level_scores"].double()
    order = torch.randperm(len(got), generator=torch.Generator().manual_seed(0))
    again = torch.zeros_like(got)
    again[order] = _called_again(batch, manager, columns, order).double()
    wrong = ((got - again).abs() > _TOLERANCE).any(dim=1)
    if late < int(wrong.sum()):
        _report_rewards(batch, manager, columns, int(wrong.nonzero()[0]))
    return int(wrong.sum())


def _report_rewards(
    batch: StepBatch, manager: Callable[[Any], Any], columns: Collection[str], row: int
) -> NoReturn:
    """Report rewards of which those of a row differ, by those of each row alone: a manager that mixes rows can't."""
    got = batch.tensors["token_level_scores"].double()
    alone = [_called_again(batch, manager, columns, torch.tensor([row])) for row in range(len(got))]
    want = torch.cat(alone).double()
    # Per row, since a reward is at the last token of a response and the next one's has another length.
    of_row, of_token = _mistakes(want.sum(1)), _mistakes(want)
    require_equal(REWARDS, got.sum(1), want.sum(1), _TOLERANCE, lambda: of_row, batch.step)
    require_equal(REWARDS, got, want, _TOLERANCE, lambda: of_token, batch.step)
    mistake = "the reward manager's result depends on the order of rows"
    found = float(got[row].sum()), "another reward in another order"
    report(Difference(REWARDS, *found, mistake=mistake, row=row, step=batch.step))


def _mistakes(right: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "it is the reward of the next row": right.roll(-1, 0),
        "it is the reward of the row before": right.roll(1, 0),
        "rewards are in the reverse order of rows": right.flip(0),
        "its sign is exchanged": -right,
        "it is 0": torch.zeros_like(right),
    }


def _called_again(
    batch: StepBatch, manager: Callable[[Any], Any], columns: Collection[str], order: torch.Tensor
) -> torch.Tensor:
    from verl import DataProto

    kept = {name: values for name, values in batch.labels.items() if not columns or name in columns}
    data = DataProto.from_dict(
        tensors={name: batch.tensors[name][order].clone() for name in _TENSORS if name in batch.tensors},
        non_tensors={name: copy.deepcopy(np.asarray(values)[order.numpy()]) for name, values in kept.items()},
    )
    found = manager(data)
    return found["reward_tensor"] if isinstance(found, Mapping) else found


def require_token_rewards(batch: StepBatch) -> None:
    """Report a token whose reward isn't its score from the reward manager; only without a KL term in the reward."""
    got, scores = batch.tensors["token_level_rewards"], batch.tensors["token_level_scores"].double()
    require_equal(TOKEN_REWARDS, got, scores, _TOLERANCE, lambda: _mistakes(scores), batch.step)
