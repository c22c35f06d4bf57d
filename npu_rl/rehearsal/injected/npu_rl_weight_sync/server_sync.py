"""Check of every weight sync between verl 0.8's trainer and vLLM's server, which are separate processes.

The trainer's worker sends its tensors through shared memory (verl/workers/rollout/vllm_rollout/vllm_rollout.py and
bucketed_weight_transfer.py@v0.8.0), and vLLM's worker loads them bucket by bucket (vllm_rollout/utils.py). The
trainer's side leaves its own tensors, and what it sent, in files of the run's folder; the server's worker reads them
when the last bucket is loaded, and compares.
As in `sync_check`, the second sync is made twice, first with changed parameters.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from npu_rl_standins.fault import with_fault
from npu_rl_standins.hooks import after_import

from .held import Whole
from .sync_check import NUMBER_OF_CHANGED_SYNC, Check, Sides, fsdp_sides, megatron_sides, other_values

_TRAINED, _SENT = "sync-trained.pt", "sync-sent.pt"


def watch(module: ModuleType) -> None:
    """Check the syncs that verl's workers make with servers, and those that vLLM's workers receive.

    Args:
        module: verl.workers.engine_workers, or verl.workers.rollout.vllm_rollout.utils.
    """
    if hasattr(module, "ActorRolloutRefWorker"):
        watch_trainer(module)
        after_import("verl.workers.rollout.vllm_rollout.vllm_rollout", watch_sender)
    else:
        watch_receiver(module)


def watch_trainer(module: ModuleType) -> None:
    """Leave the trainer's tensors for the server before each sync, and make the second one twice."""
    worker_class = module.ActorRolloutRefWorker  # type: ignore[attr-defined]
    upstream = worker_class.update_weights

    @functools.wraps(upstream)  # with verl's marks on it
    async def update_weights(worker: Any, *arguments: Any, **named: Any) -> Any:
        check = vars(worker).get("_npu_rl_check")
        if check is None:
            check = worker._npu_rl_check = Check(_sides(worker.actor.engine))
        check.number += 1
        load = functools.partial(worker.actor.engine.to, "cpu", model=True, optimizer=False, grad=False)
        load()  # parameters may be offloaded
        if check.number == NUMBER_OF_CHANGED_SYNC:
            parameters = check.sides.parameters()
            originals = [value.detach().clone() for value in parameters]
            for value in parameters:
                value.data.copy_(other_values(value.data))
            check.read_trainer()
            check.require_change()
            _leave_trained(check)
            await upstream(worker, *arguments, **named)
            load()
            for value, original in zip(parameters, originals, strict=True):
                value.data.copy_(original)
        check.read_trainer()
        _leave_trained(check)
        return await upstream(worker, *arguments, **named)

    worker_class.update_weights = update_weights


def watch_sender(module: ModuleType) -> None:
    """Leave what is sent for the server, with the fault of NPU_RL_SYNC_FAULT if there is one."""
    adapter = module.ServerAdapter  # type: ignore[attr-defined]
    upstream = adapter.update_weights

    @functools.wraps(upstream)
    async def update_weights(self: Any, weights: Any, *arguments: Any, **named: Any) -> Any:
        return await upstream(self, _recorded(with_fault(weights)), *arguments, **named)

    adapter.update_weights = update_weights


def watch_receiver(module: ModuleType) -> None:
    """Compare the server's tensors with the trainer's after each sync."""
    extension = module.vLLMColocateWorkerExtension  # type: ignore[attr-defined]
    upstream = extension.update_weights_from_ipc

    @functools.wraps(upstream)
    def update_weights_from_ipc(self: Any, *arguments: Any, **named: Any) -> Any:
        from vllm.distributed import parallel_state

        model = self.model_runner.model
        rank = parallel_state.get_tensor_model_parallel_rank()
        try:
            result = upstream(self, *arguments, **named)
        except Exception as error:
            _left_check(model, rank).require_loaded(error)
            raise
        _left_check(model, rank).compare()
        return result

    extension.update_weights_from_ipc = update_weights_from_ipc


def _sides(engine: Any) -> Sides:
    sides: Callable[[Any, Any, Any], Sides] = (
        megatron_sides if isinstance(engine.module, list) else fsdp_sides
    )
    return sides(engine.module, engine.model_config.hf_config, None)


def _recorded(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, and leave them for the receiver before the last bucket is sent."""
    sent = {}
    for name, value in weights:
        sent[name] = value.detach().cpu().clone()
        yield name, value
    _leave(_SENT, sent)


def _leave_trained(check: Check) -> None:
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        known = {name: getattr(check, name) for name in ("number", "before", "first", "unknown")}
        checkpoint, dims = check.sides.checkpoint, check.sides.dims
        _leave(_TRAINED, {**known, "trained": check.trained.tensors, "checkpoint": checkpoint, "dims": dims})


def _left_check(model: Any, tensor_rank: int) -> Check:
    """Return the trainer's side of this sync with this process's model as the rollout."""
    left = torch.load(_place(_TRAINED), weights_only=False)  # of this run's own trainer
    sides = Sides(left["dims"], lambda _: (), lambda: (), model, left["checkpoint"], tensor_rank)
    check = Check(sides, left["number"], Whole(left["trained"], ()), left["before"], left["first"])
    check.unknown = left["unknown"]
    if _place(_SENT).is_file():
        check.sent = torch.load(_place(_SENT))
    return check


def _leave(name: str, content: Any) -> None:
    place = _place(name)
    torch.save(content, f"{place}.new")
    Path(f"{place}.new").replace(place)


def _place(name: str) -> Path:
    return Path(os.environ["NPU_RL_USAGE"]) / name
