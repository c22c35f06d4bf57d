"""The optimizers that are imported by name. MindSpeed puts its own AdamW in FusedAdam's place; these only raise."""

from __future__ import annotations

from typing import Any

import torch


class _WithoutCpuVersion(torch.optim.Optimizer):
    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        name = type(self).__name__
        raise NotImplementedError(
            f"apex.optimizers.{name} has no CPU version: this apex is npu-rl's stand-in"
        )


class FusedAdam(_WithoutCpuVersion):
    """Adam in one kernel."""


class FusedSGD(_WithoutCpuVersion):
    """SGD in one kernel."""
