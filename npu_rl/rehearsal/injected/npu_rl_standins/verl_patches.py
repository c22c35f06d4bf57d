"""Initialization of Megatron without a CUDA device in cann-recipes-train's verl_patches.

verl_patches/train_engine/initialize_training.py@bcd3be7 calls initialize_megatron, which asserts that CUDA is there
unless it is told otherwise (torch_npu answers for CUDA on a device).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .used import count


def _install_in(module: ModuleType) -> None:
    original = module.initialize_megatron

    def initialize_megatron(*arguments: Any, **named: Any) -> Any:
        count("verl_patches.initialize_megatron")
        return original(*arguments, **{**named, "allow_no_cuda": True})

    module.initialize_megatron = initialize_megatron  # type: ignore[attr-defined]


HOOKS = {"verl_patches.train_engine.initialize_training": _install_in}
