"""The check of every weight sync between Megatron and vLLM, by `npu_rl_weight_sync`.

The stand-in for the rollout has the check built in (`rollout`).
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

from .hooks import after_import

MANAGERS = (
    "verl.workers.sharding_manager.megatron_vllm",
    "verl_patches.workers.sharding_manager.megatron_vllm",
)
"""Modules with a sharding manager between Megatron and vLLM, of verl and of cann-recipes-train."""


def install() -> None:
    """Check the syncs of verl's managers and of those in cann-recipes-train.

    A witness of a fault has no checkpoint to compare with, and not `npu_rl_tensors`, which only a run has on its path.
    """
    if importlib.util.find_spec("npu_rl_tensors") is None:
        return
    for module in MANAGERS:
        after_import(module, _install_in)


def _install_in(module: ModuleType) -> None:
    from npu_rl_weight_sync.sync_check import megatron_and_vllm, watch

    watch(module.MegatronVLLMShardingManager, megatron_and_vllm)
