"""Expert parallelism over several data-parallel ranks on a CPU: vLLM's own naive exchange, over gloo.

vLLM 0.9.1's communicator for CPUs has no exchange between data-parallel ranks: `dispatch` and `combine` do nothing,
and loading the model asserts that there is one (vllm/distributed/device_communicators/cpu_communicator.py,
base_device_communicator.py; cuda_communicator.py has it). The exchange itself, NaiveAll2AllManager of all2all.py, is
plain torch.distributed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from npu_rl_standins.used import count


def install_in(module: ModuleType) -> None:
    """Give CpuCommunicator what CudaCommunicator does for the backend `naive`."""
    communicator = module.CpuCommunicator  # type: ignore[attr-defined]
    original = communicator.__init__

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if self.use_all2all:
            from vllm.distributed.device_communicators.all2all import NaiveAll2AllManager

            self.all2all_manager = NaiveAll2AllManager(self.cpu_group)

    def dispatch(
        self: Any, hidden_states: torch.Tensor, router_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count("vllm.dispatch")
        hidden, logits = self.all2all_manager.dispatch(hidden_states, router_logits)
        return hidden, logits

    def combine(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        count("vllm.combine")
        combined: torch.Tensor = self.all2all_manager.combine(hidden_states)
        return combined

    communicator.__init__ = __init__
    communicator.dispatch = dispatch
    communicator.combine = combine


def use_gloo_for_hccl(module: ModuleType) -> None:
    """Form the group of data-parallel engines with gloo, where vllm-ascend names HCCL."""
    original = module.stateless_init_torch_distributed_process_group  # type: ignore[attr-defined]

    def init(host: str, port: int, rank: int, world_size: int, backend: str) -> Any:
        if backend == "hccl":
            count("vllm.stateless_init_torch_distributed_process_group")
            backend = "gloo"
        return original(host, port, rank, world_size, backend)

    module.stateless_init_torch_distributed_process_group = init  # type: ignore[attr-defined]
