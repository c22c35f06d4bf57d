"""Adaptation dapo-whole-groups: DAPO trains on all responses of the prompts it keeps.

DAPO generates for more prompts than it trains on, drops those whose responses all score the same, and cuts the rest to
`train_batch_size` prompts by keeping the first `train_batch_size * n` rows. That is right while the n responses of a
prompt are neighbours. verl_npu 2.3.0 repeats prompts by `interleave=False`, so that they are a whole batch apart: the
cut then keeps some responses of every prompt, and the mean and deviation by which GRPO's advantage is computed are
those of a part of each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .switches import enabled
from .used import count

SLUG = "dapo-whole-groups"


def first_groups(batch: Any, prompts: int, rows: int) -> Any:
    """Return the part of the batch that is trained on.

    Args:
        batch: verl's DataProto; `non_tensor_batch["uid"]` names the prompt of each row.
        prompts: The number of prompts to keep; those that come first.
        rows: The number of rows that upstream keeps.
    """
    if not enabled(SLUG):
        return batch[:rows]
    count(SLUG)
    return batch[group_rows(batch.non_tensor_batch["uid"], prompts)]


def group_rows(uids: Sequence[Any], prompts: int) -> list[int]:
    """Return the rows of the first `prompts` different uids, in their order."""
    kept = set(list(dict.fromkeys(uids))[:prompts])
    return [row for row, uid in enumerate(uids) if uid in kept]
