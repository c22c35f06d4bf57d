"""The mask of a response's tokens, from the tokens themselves: up to the first end of sequence, which is included."""

from __future__ import annotations

from collections.abc import Collection

import torch


def response_mask(responses: torch.Tensor, ends: Collection[int]) -> torch.Tensor:
    """Return the mask of responses, (rows, tokens).

    Args:
        ends: Tokens that end a sequence.
    """
    is_end = torch.isin(responses, torch.tensor(sorted(ends), dtype=responses.dtype))
    before = torch.cumsum(is_end.long(), dim=1) - is_end.long()
    return before == 0


def known_mistakes(responses: torch.Tensor, ends: Collection[int]) -> dict[str, torch.Tensor]:
    """Return the masks that each known mistake makes, by its name."""
    mask = response_mask(responses, ends)
    first, last = torch.ones_like(mask[:, :1]), torch.zeros_like(mask[:, :1])
    early = torch.cat([mask[:, 1:], last], dim=1)
    without_end = mask & ~torch.isin(responses, torch.tensor(sorted(ends), dtype=responses.dtype))
    return {
        "the mask ends one token early": early,
        "the mask ends one token early, before the end of sequence": without_end,
        "the mask ends one token late": torch.cat([first, mask[:, :-1]], dim=1),
        "the mask has every token": torch.ones_like(mask),
    }
