"""transformers mistakes a packed query for one shorter than its keys, and attends over wrong bounds.

Two sequences of 3 and 5 tokens are packed; the length that verl gives is that of one part of two
(transformers/modeling_flash_attention_utils.py@8365f70). "bounds" are where attention takes each sequence to begin and
end, "longest" the longest one; right are [0, 3, 8] and 5.
"""

from __future__ import annotations

from typing import Any

import torch
from witness_common import show

STAND_INS = ("npu",)


def main() -> dict[str, Any]:
    from transformers.modeling_flash_attention_utils import _prepare_from_posids

    query, key, value = (torch.zeros(1, 8, 2, 4) for _ in range(3))
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    *_, bounds, longest = _prepare_from_posids(query, key, value, positions, 4)
    found = {"bounds": [bound.tolist() for bound in bounds], "longest": list(longest)}
    return {"fault": found != {"bounds": [[0, 3, 8]] * 2, "longest": [5, 5]}, **found}


if __name__ == "__main__":
    show(main)
