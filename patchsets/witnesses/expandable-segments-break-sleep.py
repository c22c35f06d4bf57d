"""Expandable segments stay on in the workers while vLLM's sleep mode, which can't be used with them, is.

Entered and left are verl's sharding managers of FSDP and of Megatron (verl/workers/sharding_manager@796871d), with the
adaptation on, in a process that is not the driver's, up to an engine that can't be woken. "worker" is what the worker's
allocator and engine were asked in turn.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from witness_common import show

STAND_INS = ("npu",)
MANAGERS = {"fsdp_vllm": "FSDPVLLMShardingManager", "megatron_vllm": "MegatronVLLMShardingManager"}
OFF, ON = "expandable_segments:False", "expandable_segments:True"


class Stop(Exception):
    """Ends what is observed."""


def main() -> dict[str, Any]:
    os.environ.setdefault("NPU_RL_WORKERS_EXPANDABLE_SEGMENTS", "1")
    for stubbed in ("verl.third_party.vllm", "verl.utils.vllm", "verl.utils.vllm.patch"):
        sys.modules[stubbed] = MagicMock()
    found = {module: segments(module, name) for module, name in MANAGERS.items()}
    right = {"worker": [OFF, "wake up", ON, "sleep", ON], "here": []}
    return {"fault": any(one != right for one in found.values()), **found}


def segments(module: str, name: str) -> dict[str, Any]:
    """Return what a manager asks of allocator and engine in a worker, and what the driver's allocator was asked."""
    manager = getattr(importlib.import_module(f"verl.workers.sharding_manager.{module}"), name)
    calls: list[str] = []
    torch.npu = SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: True, memory=SimpleNamespace(_set_allocator_settings=calls.append)
    )
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    worker = context.Process(target=work, args=(manager, calls, sending))
    worker.start()
    seen = receiving.recv()
    worker.join()
    return {"worker": seen, "here": calls}


def work(manager: Any, calls: list[str], sending: Any) -> None:
    """Enter up to where the engine is woken, which fails; then leave."""

    def wake_up(**_: Any) -> None:
        calls.append("wake up")
        raise Stop

    module = torch.nn.Linear(1, 1)
    module.state_dict = dict  # type: ignore[method-assign,assignment]
    engine = SimpleNamespace(wake_up=wake_up, sleep=lambda **_: calls.append("sleep"))
    one = manager.__new__(manager)
    vars(one).update(
        rollout_config=SimpleNamespace(free_cache_engine=True), inference_engine=engine, device_mesh=None,
        offload_param=False, module=module, actor_module=[module],
    )  # fmt: skip
    importlib.import_module(manager.__module__).FSDP = MagicMock(state_dict_type=MagicMock())
    try:
        one.__enter__()
    except Stop:
        pass
    one.__exit__(None, None, None)
    sending.send(calls)


if __name__ == "__main__":
    show(main)
