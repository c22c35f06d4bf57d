"""torch_npu in the models of transformers that verl_npu's patches made call it.

They import it where `is_torch_npu_available()`, which the stand-in denies so that verl stays on the CPU
(transformers/models/qwen3_moe/modeling_qwen3_moe.py, after modeling_qwen3_moe.patch of verl_npu 2.3.0).
"""

from __future__ import annotations

import sys
from typing import Any

MODULES = (
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
)


def install_in(model: Any) -> None:
    """Give a patched model the name torch_npu; a model that doesn't need an NPU never uses it."""
    if hasattr(model, "is_torch_npu_available"):
        model.torch_npu = sys.modules["torch_npu"]
