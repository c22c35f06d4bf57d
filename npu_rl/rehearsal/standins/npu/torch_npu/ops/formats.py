"""Formats and shapes of tensors; a CPU tensor has one format, so casts between formats change nothing."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..registry import op

_ND = 2


@op
def npu_format_cast(self: torch.Tensor, acl_format: Any, *_: Any, **__: Any) -> torch.Tensor:
    """The tensor itself: the NPU's private formats (29 is FRACTAL_NZ) order the same numbers another way."""
    return self


@op
def npu_format_cast_(self: torch.Tensor, acl_format: Any, *_: Any, **__: Any) -> torch.Tensor:
    """The tensor itself, as npu_format_cast; nothing to change in place."""
    return self


@op
def get_npu_format(self: torch.Tensor) -> int:
    """2, which is ND, the plain order; also after a cast."""
    return _ND


@op
def npu_confusion_transpose(
    self: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """permute(perm) and reshape(shape), in this order if transpose_first. Source: op-plugin docs. Differentiable."""
    if transpose_first:
        return self.permute(*perm).reshape(*shape)
    return self.reshape(*shape).permute(*perm).contiguous()
