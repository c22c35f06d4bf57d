"""Hooks that check every weight sync of a rehearsal: with vLLM's engine, and with the stand-in for the rollout.

Stand-ins know nothing of the check. It is installed beside them, by `sitecustomize`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

from npu_rl_standins.fault import MANAGERS
from npu_rl_standins.hooks import after_import


def install() -> None:
    """Check the syncs of managers of verl and cann-recipes-train, and those of the stand-in for the rollout.

    A witness of a fault has no checkpoint to compare with, and not `npu_rl_tensors`, which only a run has on its path.
    """
    if importlib.util.find_spec("npu_rl_tensors") is None:
        return
    for module in MANAGERS:
        after_import(module, _watch_vllm)
    after_import("verl.workers.engine_workers", _watch_servers)
    after_import("verl.workers.rollout.vllm_rollout.utils", _watch_servers)
    after_import("npu_rl_standins.rollout", _watch_standin)


def _watch_servers(module: ModuleType) -> None:
    from . import server_sync

    server_sync.watch(module)


def _watch_vllm(module: ModuleType) -> None:
    from .sync_check import megatron_and_vllm, watch

    watch(module.MegatronVLLMShardingManager, megatron_and_vllm)


def _watch_standin(module: Any) -> None:
    def fsdp(worker: Any, model: Any) -> Any:
        from .sync_check import fsdp_sides

        return fsdp_sides(worker.actor_module_fsdp, worker.actor_model_config, model)

    def megatron(worker: Any, model: Any) -> Any:
        from .sync_check import megatron_sides

        return megatron_sides(worker.actor.actor_module, worker.hf_config, model)

    module.build_on_fsdp = _watched(module.build_on_fsdp, fsdp)
    module.build_on_megatron = _watched(module.build_on_megatron, megatron)


def _watched(build: Callable[..., Any], sides: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def build_and_watch(worker: Any, *arguments: Any, **named: Any) -> Any:
        from .sync_check import watch

        rollout, manager = build(worker, *arguments, **named)
        watch(type(manager), lambda _: sides(worker, manager.rollout_model))
        return rollout, manager

    return build_and_watch
