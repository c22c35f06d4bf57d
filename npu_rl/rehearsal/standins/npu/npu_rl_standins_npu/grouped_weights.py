"""Initial states of MindSpeed's grouped linear layers on a CPU.

They name the wrong dimension for the split over tensor parallel ranks: `partition_dim = 1 if parallel_mode == "column"`
for weights of output x input (mindspeed/te/pytorch/module/grouped_linear.py:41 at 1cdd0ab). On an NPU each rank draws
its own part, where the dimension doesn't matter; on a CPU a part is cut out of the whole weight, in a wrong shape.
"""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.used import count

MODULES = ("mindspeed.te.pytorch.module.grouped_linear",)


def install_in(module: Any) -> None:
    """Cut the part out along the dimension that is smaller in the weight than in the whole."""
    initialize = getattr(module, "_initialize_affine_weight_cpu", None)
    if initialize is None:
        return

    def initialize_by_shape(
        weight: torch.Tensor, output_size: int, input_size: int, *sizes: int, partition_dim: int, **named: Any
    ) -> Any:
        if tuple(weight.shape) != (output_size, input_size):
            count("mindspeed.grouped_linear")
            partition_dim = 0 if weight.shape[0] != output_size else 1
        return initialize(weight, output_size, input_size, *sizes, partition_dim=partition_dim, **named)

    module._initialize_affine_weight_cpu = initialize_by_shape
