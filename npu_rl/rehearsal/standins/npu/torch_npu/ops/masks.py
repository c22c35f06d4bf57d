"""The keys that a query does not see, for each sparse mode of npu_fusion_attention.

From op-plugin's docs: a mask is True (1) for a key that is not seen. Without a mask every key is seen in every mode.
Modes 2 (causal from the upper left), 3 (causal from the lower right) and 4 (a band from the lower right) take a
"compressed" mask: always the 2048 x 2048 upper triangle, of which the kernel uses the blocks it needs. A wrong one
gives wrong numbers on an NPU, so it is refused here, and so is a mask of mode 0 that shows a key which pre_tockens and
next_tockens exclude.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from npu_rl_standins.unsupported import UnsupportedArgument

_DEFAULT, _ALL, _UPPER_LEFT, _LOWER_RIGHT, _BAND = range(5)
_COMPRESSED = (2048, 2048)

_known_triangles: set[tuple[int, int]] = set()


class Masking(NamedTuple):
    """The arguments of npu_fusion_attention that determine which keys are seen."""

    mode: int
    atten_mask: torch.Tensor | None
    pre_tockens: int
    next_tockens: int


def hidden(name: str, masking: Masking, queries: int, keys: int) -> torch.Tensor | None:
    """Return True for keys that are not seen, broadcasting to (B, N, queries, keys); None if every key is seen."""
    mode, atten_mask, pre_tockens, next_tockens = masking
    if mode not in range(5):
        raise UnsupportedArgument(f"torch_npu.{name}", "sparse_mode", mode)
    if atten_mask is None:
        return None
    if atten_mask.dtype not in (torch.bool, torch.uint8):
        raise TypeError(f"torch_npu.{name}: atten_mask must be bool or uint8, not {atten_mask.dtype}")
    if mode in (_DEFAULT, _ALL):
        mask = atten_mask[..., :queries, :keys].bool()
        if mask.shape[-2:] != (queries, keys):
            raise ValueError(
                f"torch_npu.{name}: atten_mask {tuple(atten_mask.shape)} is too small for "
                f"{queries} queries and {keys} keys"
            )
        if mode == _DEFAULT and queries == keys:
            _check_band(name, mask, pre_tockens, next_tockens)
        return mask
    _check_triangle(name, mode, atten_mask)
    distance = torch.arange(keys) - torch.arange(queries).unsqueeze(1)
    if mode == _UPPER_LEFT:
        return distance > 0
    distance = distance - (keys - queries)
    if mode == _LOWER_RIGHT:
        return distance > 0
    return (distance > next_tockens) | (distance < -pre_tockens)


def _check_band(name: str, mask: torch.Tensor, pre_tockens: int, next_tockens: int) -> None:
    size = mask.shape[-1]
    if pre_tockens >= size and next_tockens >= size:
        return
    distance = torch.arange(size) - torch.arange(size).unsqueeze(1)
    excluded = (distance > next_tockens) | (distance < -pre_tockens)
    if bool((excluded & ~mask).any()):
        raise ValueError(
            f"torch_npu.{name}: atten_mask shows keys that pre_tockens={pre_tockens} and "
            f"next_tockens={next_tockens} exclude; what an NPU computes then is not defined"
        )


def _check_triangle(name: str, mode: int, mask: torch.Tensor) -> None:
    shape = tuple(mask.shape[-2:])
    key = (mask.data_ptr(), mask._version)
    if shape == _COMPRESSED and key in _known_triangles:
        return
    if shape != _COMPRESSED or not torch.equal(
        mask.bool().reshape(-1, *shape)[0], torch.ones(_COMPRESSED, dtype=torch.bool).triu(1)
    ):
        raise ValueError(
            f"torch_npu.{name}: sparse_mode={mode} needs the 2048 x 2048 upper triangle as atten_mask, "
            f"not a mask of shape {tuple(mask.shape)} with other entries"
        )
    _known_triangles.add(key)
