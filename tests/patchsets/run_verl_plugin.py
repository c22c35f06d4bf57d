"""Call what the patchset verl/796871d changes in verl, and print what happened.

    python run_verl_plugin.py kernels|fsdp|megatron

On PYTHONPATH: the stand-ins for a CPU and for torch_npu, and a tree with verl and Megatron-core. vLLM is two empty
modules. The output is one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch


class Stop(Exception):
    """Ends what is observed."""


def kernels() -> dict[str, Any]:
    """verl's fused cross entropy beside a triton whose decorators find no GPU."""
    found: dict[str, Any] = {"imported": None, "called": None}
    importlib.import_module("verl")  # with what it imports of torch, which asks for a whole triton
    sys.modules["triton"] = triton = ModuleType("triton")
    sys.modules["triton.language"] = triton.language = MagicMock()  # type: ignore[attr-defined]
    triton.Config = MagicMock()  # type: ignore[attr-defined]
    triton.jit = lambda function: function  # type: ignore[attr-defined]
    triton.autotune = _no_gpu  # type: ignore[attr-defined]
    try:
        module = importlib.import_module("verl.utils.kernel.linear_cross_entropy")
        found["imported"] = "yes"
        module.linear_cross_entropy(torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))
    except RuntimeError as error:
        found["called" if found["imported"] else "imported"] = str(error)
    return found


def _no_gpu(*_: Any, **__: Any) -> Any:
    raise RuntimeError("0 active drivers")


def fsdp() -> dict[str, Any]:
    return _segments("fsdp_vllm", "FSDPVLLMShardingManager")


def megatron() -> dict[str, Any]:
    return _segments("megatron_vllm", "MegatronVLLMShardingManager")


def _segments(module: str, name: str) -> dict[str, Any]:
    """What a manager asks of allocator and engine in a worker; and what the driver's allocator was asked."""
    for stubbed in ("verl.third_party.vllm", "verl.utils.vllm", "verl.utils.vllm.patch"):
        sys.modules[stubbed] = MagicMock()
    manager = getattr(importlib.import_module(f"verl.workers.sharding_manager.{module}"), name)
    calls: list[list[Any]] = []
    torch.npu = SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: True,
        memory=SimpleNamespace(_set_allocator_settings=lambda text: calls.append([os.getpid(), text])),
    )
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(manager, calls, sending))
    worker.start()
    seen = receiving.recv()
    worker.join()
    return {
        "here": calls,
        "elsewhere": [text for process, text in seen if process != worker.pid],
        "worker": [text for _, text in seen],
    }


def _work(manager: Any, calls: list[list[Any]], sending: Any) -> None:
    """Enter up to where the engine is woken, which fails; then leave."""

    def note(text: str, fails: bool = False) -> Any:
        def call(**_: Any) -> None:
            calls.append([os.getpid(), text])
            if fails:
                raise Stop

        return call

    one = manager.__new__(manager)
    vars(one).update(
        rollout_config=SimpleNamespace(free_cache_engine=True),
        inference_engine=SimpleNamespace(wake_up=note("wake up", fails=True), sleep=note("sleep")),
        device_mesh=None,
        offload_param=False,
    )
    module = torch.nn.Linear(1, 1)
    if "FSDP" in manager.__name__:
        one.__dict__["module"] = module
        importlib.import_module(manager.__module__).FSDP = MagicMock(state_dict_type=MagicMock())
        module.state_dict = dict  # type: ignore[method-assign,assignment]
    else:
        one.actor_module = [module]
    try:
        one.__enter__()
    except Stop:
        pass
    one.__exit__(None, None, None)
    sending.send(calls)


if __name__ == "__main__":
    found = {"kernels": kernels, "fsdp": fsdp, "megatron": megatron}[sys.argv[1]]()
    print(json.dumps(found))
