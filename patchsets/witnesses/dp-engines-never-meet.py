"""With VLLM_DP_SIZE set, every vLLM engine of verl believes that it is the first replica, at port 0.

Two gloo ranks, which this script starts itself, make verl's vLLMRollout
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b), or verl_patches' in its place, up to vLLM's engine;
then ParallelConfig reads rank and port as the engine does (vllm/config.py@v0.9.1). Replicas that have one rank and
port 0 wait for each other until torch's timeout.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from witness_common import HasEngine, an_engine, is_patched, join_ranks, make_vllm_rollout, run_ranks, show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

WORLD = 2


def main() -> dict[str, Any]:
    replicas = run_ranks(
        WORLD, seconds=500, MASTER_ADDR="127.0.0.1", MASTER_PORT="29555", LOCAL_RANK="0", VLLM_USE_V1="1",
        VLLM_DP_SIZE=str(WORLD), VLLM_PLUGINS="",
    )  # fmt: skip
    meet = [one["rank"] for one in replicas] == [0, 1] and len({one["port"] for one in replicas} - {0}) == 1
    return {"fault": not meet, "replicas": replicas}


def be_a_rank(folder: str) -> dict[str, int]:
    import torch
    import torch.distributed as dist

    join_ranks(folder)
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd  # noqa: F401  (before vllm's platforms)
    from vllm.config import ParallelConfig

    if is_patched():
        import torch_npu
        from vllm.platforms import current_platform

        torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend names; the stand-in has no graphs
        # The default configuration, with which it forms groups, has a device.
        current_platform.device_type = "cpu"
    found: dict[str, int] = {}

    def without_a_device(engine_args: Any) -> SimpleNamespace:
        config = ParallelConfig(distributed_executor_backend="external_launcher")
        found.update(rank=config.data_parallel_rank, port=config.data_parallel_master_port)
        if is_patched():
            raise HasEngine
        return an_engine(engine_args)

    make_vllm_rollout(without_a_device)
    dist.all_reduce(torch.zeros(1))  # the store of a group lives in its first rank
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    show(main if len(sys.argv) == 1 else lambda: be_a_rank(sys.argv[1]))
