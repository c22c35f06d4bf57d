"""Adaptation dapo-whole-groups: DAPO trains on all responses of the prompts that it keeps.

DAPO generates for more prompts than it trains on, drops prompts whose responses all have the same score, and reduces
the rest to `train_batch_size` prompts by keeping the first `train_batch_size * n` rows. That is correct while the n
responses of a prompt are adjacent. verl_npu 2.3.0 repeats prompts with `interleave=False`, so they are a whole batch
apart: the kept rows are then some responses of every prompt, and GRPO computes its advantages from the mean and
standard deviation of partial groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .switches import enabled
from .used import count

SLUG = "dapo-whole-groups"


def first_groups(batch: Any, prompts: int, rows: int) -> Any:
    """Return the rows of the batch to train on.

    Args:
        batch: verl's DataProto; `non_tensor_batch["uid"]` names the prompt of each row.
        prompts: The number of prompts to keep, from the start of the batch.
        rows: The number of rows that upstream keeps.
    """
    if not enabled(SLUG):
        return batch[:rows]
    count(SLUG)
    return batch[group_rows(batch.non_tensor_batch["uid"], prompts)]


def group_rows(uids: Sequence[Any], prompts: int) -> list[int]:
    """Return the row indices of the first `prompts` distinct uids, in order."""
    kept = set(list(dict.fromkeys(uids))[:prompts])
    return [row for row, uid in enumerate(uids) if uid in kept]
