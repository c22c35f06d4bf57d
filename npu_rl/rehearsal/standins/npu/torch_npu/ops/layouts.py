"""The layouts of attention's tensors, and their conversion to blocks of (B, N, S, D) and back.

SBH and BSH join heads and their entries in the last dimension; BSND and BNSD keep them apart; TND has the tokens of
all sequences one after the other, divided by their ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

DENSE = ("SBH", "BSH", "BSND", "BNSD")
_REPEATED = 8  # the kernel returns each row's maximum and sum eight times


def heads_of(layout: str, x: torch.Tensor, head_size: int) -> int:
    """Return the number of heads of x."""
    if layout in ("SBH", "BSH"):
        return int(x.shape[-1]) // head_size
    return int(x.shape[1] if layout in ("BNSD", "TND") else x.shape[2])


def to_bnsd(layout: str, x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a dense tensor as (B, N, S, D)."""
    if layout == "SBH":
        return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    if layout == "BSH":
        return x.unflatten(-1, (heads, -1)).permute(0, 2, 1, 3)
    return x.permute(0, 2, 1, 3) if layout == "BSND" else x


def from_bnsd(layout: str, x: torch.Tensor) -> torch.Tensor:
    """Return (B, N, S, D) as a dense tensor."""
    if layout == "SBH":
        return x.permute(2, 0, 1, 3).flatten(2)
    if layout == "BSH":
        return x.permute(0, 2, 1, 3).flatten(2)
    return x.permute(0, 2, 1, 3) if layout == "BSND" else x


def check(name: str, layout: str, query: torch.Tensor) -> None:
    """Raise for an unknown layout, or one that does not have query's number of dimensions."""
    if layout != "TND" and layout not in DENSE:
        raise UnsupportedArgument(f"torch_npu.{name}", "input_layout", layout)
    if query.dim() != (3 if layout in ("SBH", "BSH", "TND") else 4):
        raise ValueError(
            f"torch_npu.{name}: a query of layout {layout} can't have shape {tuple(query.shape)}"
        )


def sequence_ends(name: str, argument: str, ends: Any, tokens: int) -> list[int]:
    """Return the ends of a TND tensor's sequences; zeros after the last end mark sequences that are left out."""
    if ends is None:
        raise ValueError(f"torch_npu.{name}: layout TND needs {argument}")
    numbers = [int(end) for end in ends]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    if sorted(numbers) != numbers or (numbers and (numbers[0] < 0 or numbers[-1] > tokens)):
        raise ValueError(f"torch_npu.{name}: {argument} {numbers} doesn't divide {tokens} tokens")
    return numbers


def cut(x: torch.Tensor, ends: Sequence[int]) -> list[torch.Tensor]:
    """Return the sequences of a TND tensor, each as (1, N, S, D)."""
    starts = [0, *ends]
    return [x[start:end].transpose(0, 1).unsqueeze(0) for start, end in zip(starts, ends, strict=False)]


def join(parts: Sequence[torch.Tensor], shape: tuple[int, int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return the TND tensor (T, N, D) of these sequences; tokens of no sequence are zero."""
    joined = [part.squeeze(0).transpose(0, 1).to(dtype) for part in parts]
    left = shape[0] - sum(part.shape[0] for part in joined)
    return torch.cat((*joined, torch.zeros(left, *shape[1:], dtype=dtype)))


def repeat_statistic(statistic: torch.Tensor) -> torch.Tensor:
    """Return (B, N, S, 1) as the kernel does, (B, N, S, 8)."""
    return statistic.detach().expand(*statistic.shape[:-1], _REPEATED).contiguous()


def join_statistics(parts: Sequence[torch.Tensor], tokens: int, heads: int, as_tnd: bool) -> torch.Tensor:
    """Return (T, N, 8) for all sequences; unless `as_tnd`, each sequence's numbers are in the order (N, S, 8)."""
    ordered = [part.squeeze(0).transpose(0, 1) if as_tnd else part.squeeze(0) for part in parts]
    flat = torch.cat([part.reshape(-1, _REPEATED) for part in ordered] or [torch.zeros(0, _REPEATED)])
    left = tokens * heads - flat.shape[0]
    return torch.cat((flat, flat.new_zeros(left, _REPEATED))).view(tokens, heads, _REPEATED)
