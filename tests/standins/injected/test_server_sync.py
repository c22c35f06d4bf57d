"""The comparison of a weight sync whose two sides are a trainer and a server, which share files only."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from npu_rl.rehearsal.training_checks.weight_syncs import read_weight_syncs
from tests.standins.injected.test_weight_sync import NORM, O_PROJ, Sync, changed, left_out, packages, sync

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]
__all__ = ["packages", "sync"]  # fixtures

Weights = Iterable[tuple[str, Any]]


class Transfer:
    """verl's worker, its client and vLLM's worker, with `on_the_way` between what is sent and what is loaded."""

    def __init__(
        self, sync: Sync, on_the_way: Callable[[Weights], Weights] = lambda weights: weights
    ) -> None:
        trainer, rollout = sync.trainer, sync.rollout
        loaded: list[tuple[str, Any]] = []

        class ActorRolloutRefWorker:
            async def update_weights(self, global_steps: int | None = None) -> None:
                await ServerAdapter().update_weights(iter(trainer.state_dict().items()))

        class ServerAdapter:
            async def update_weights(self, weights: Weights) -> None:
                loaded[:] = [(name, value.clone()) for name, value in weights]
                extension.update_weights_from_ipc()

        class vLLMColocateWorkerExtension:
            model_runner = SimpleNamespace(model=rollout)

            def update_weights_from_ipc(self) -> None:
                rollout.load_weights(on_the_way(loaded))

        self.trainer_side = SimpleNamespace(ActorRolloutRefWorker=ActorRolloutRefWorker)
        self.client = SimpleNamespace(ServerAdapter=ServerAdapter)
        self.server_side = SimpleNamespace(vLLMColocateWorkerExtension=vLLMColocateWorkerExtension)
        extension = vLLMColocateWorkerExtension()
        self.worker = ActorRolloutRefWorker()
        engine = SimpleNamespace(module=trainer, to=lambda *_, **__: None)
        engine.model_config = SimpleNamespace(hf_config=trainer.config)
        self.worker.actor = SimpleNamespace(engine=engine)  # type: ignore[attr-defined]

    def sync(self) -> None:
        asyncio.run(self.worker.update_weights())


@pytest.fixture
def transfer(sync: Sync, packages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Watched transfers, each between both sides of `sync`."""
    server = packages("npu_rl_weight_sync.server_sync")
    parallel_state = ModuleType("vllm.distributed.parallel_state")
    parallel_state.get_tensor_model_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    distributed = ModuleType("vllm.distributed")
    distributed.parallel_state = parallel_state  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    sync.trainer.config.name_or_path = str(tmp_path / "model")

    def made(**named: Any) -> Transfer:
        whole = Transfer(sync, **named)
        server.watch_trainer(whole.trainer_side)
        server.watch_sender(whole.client)
        server.watch_receiver(whole.server_side)
        return whole

    return made


def test_equal_tensors_pass_over_three_syncs(transfer: Any, sync: Sync, tmp_path: Path) -> None:
    between = transfer()
    before = {name: value.clone() for name, value in sync.trainer.state_dict().items()}
    for _ in range(3):
        between.sync()
    assert all(torch.equal(value, before[name]) for name, value in sync.trainer.state_dict().items())
    found = read_weight_syncs([tmp_path / "usage"])
    assert (found.syncs, found.tensors, found.faults) == (3, len(before), [])


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (changed(O_PROJ, torch.zeros_like), f"{O_PROJ}: zeros, sent as it is in the trainer"),
        (left_out(NORM), f"{NORM}: other values, sent as it is in the trainer"),
    ],
)
def test_what_the_server_loads_otherwise_is_named(transfer: Any, fault: Any, told: str) -> None:
    with pytest.raises(RuntimeError, match=f"weight sync 1, rank 0: (?s:.*){told}"):
        transfer(on_the_way=fault).sync()


@pytest.mark.parametrize(
    ("kind", "number", "told"),
    [
        ("zeroed", 1, "zeros, as the trainer sent it"),
        ("unsent", 1, "other values, not sent to this rank"),
        ("rounded", 1, "rounded, as the trainer sent it"),
        ("exchanged", 1, "its own shards in another order, as the trainer sent it"),
        ("kept", 2, "stale: the values of the sync before, as the trainer sent it"),
    ],
)
def test_each_fault_in_the_sender_is_named(
    transfer: Any, sync: Sync, monkeypatch: pytest.MonkeyPatch, kind: str, number: int, told: str
) -> None:
    sync.rollout.float()  # as in a rehearsal
    monkeypatch.setenv("NPU_RL_SYNC_FAULT", f"{kind}:{O_PROJ}")
    between = transfer()
    for _ in range(1, number):
        between.sync()
    with pytest.raises(RuntimeError, match=f"weight sync {number}, rank 0: (?s:.*){O_PROJ}: {told}"):
        between.sync()
