"""Access to the tree's Megatron-core (0.8 to 0.12) for both layout rehearsals."""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def parallel_state() -> Any:
    """Return megatron.core.parallel_state of the tree."""
    return importlib.import_module("megatron.core.parallel_state")


def initialize(state: Any, sizes: dict[str, int], **more: Any) -> None:
    """Form the groups of `sizes` like the trainer. Arguments in `more` are passed on if this release accepts them.

    Raises ValueError if the release has no parameter for the experts' tensor parallel size and it differs.
    """
    accepted = inspect.signature(inspect.unwrap(state.initialize_model_parallel)).parameters
    arguments = {
        "tensor_model_parallel_size": sizes["tensor"],
        "pipeline_model_parallel_size": sizes["pipeline"],
        "context_parallel_size": sizes["context"],
        "expert_model_parallel_size": sizes["expert"],
    }
    if "expert_tensor_parallel_size" in accepted:
        arguments["expert_tensor_parallel_size"] = sizes["expert_tensor"]
    elif sizes["expert"] > 1 and sizes["expert_tensor"] != sizes["tensor"]:
        raise ValueError(
            "this Megatron-core takes no expert_tensor_parallel_size: it is the tensor parallel size"
        )
    arguments |= {name: value for name, value in more.items() if name in accepted}
    state.initialize_model_parallel(**arguments)
