"""Formats of tensors; a CPU tensor has one, so a cast changes nothing."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

from typing import Any

import torch

from ..registry import op


@op
def npu_format_cast(self: torch.Tensor, acl_format: Any, *_: Any, **__: Any) -> torch.Tensor:
    """The tensor itself: the NPU's private formats (29 is FRACTAL_NZ) order the same numbers another way."""
    return self
