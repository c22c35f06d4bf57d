"""Compare the sockets that verl's trainer ranks send an engine's weights to with those its ranks listen on.

A replica has DATA data-parallel engines of TENSOR ranks each, of a model with experts and of a dense one. The names are
those of verl's own ServerAdapter (verl/workers/rollout/vllm_rollout/vllm_rollout.py:106@v0.8.0) and
vLLMColocateWorkerExtension (utils.py:290), the latter over the ParallelConfig that vLLM's own
EngineCoreProc.run_engine_core leaves (vllm/v1/engine/core.py:1035 of 0.18.0): it sets `data_parallel_size` of a dense
model to 1. On platforms that are not CUDA-like vLLM narrows the visible devices of each engine
(vllm/v1/engine/utils.py:141), so the local ranks of every engine begin at 0; that is given here. A sender waits until
its receiver has taken the weights.

The rest of vLLM is not run: its modules are names that compute nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from npu_rl_standins.named_modules import NamedModules

DATA, TENSOR = 2, 4


sys.meta_path.insert(0, NamedModules("vllm", "msgspec", "zmq", own=["vllm.v1.engine.core"]))

from verl.workers.rollout.base import BaseRollout  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_rollout  # noqa: E402
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension  # noqa: E402

STAND_INS = ("npu",)


def senders() -> set[str]:
    """Return the sockets of all trainer ranks of the first replica."""

    def keep_config(self: Any, config: Any, *_: Any) -> None:
        self.config = config

    BaseRollout.__init__ = keep_config
    context = SimpleNamespace(get_job_id=lambda: "0")
    vllm_rollout.ray = SimpleNamespace(get_runtime_context=lambda: context)
    vllm_rollout.get_device_id = vllm_rollout.get_device_uuid = lambda *_: 0
    vllm_rollout.is_support_ipc = lambda: True
    config = SimpleNamespace(
        tensor_model_parallel_size=TENSOR, data_parallel_size=DATA, pipeline_model_parallel_size=1,
        layered_summon=False, expert_parallel_size=1,
    )  # fmt: skip
    found = set()
    for rank in range(DATA * TENSOR):
        os.environ |= {"RANK": str(rank), "RAY_LOCAL_WORLD_SIZE": str(DATA * TENSOR)}
        found.add(vllm_rollout.ServerAdapter(config, None, None).zmq_handle)
    return found


def parallel_config(engine: int, has_experts: bool) -> SimpleNamespace:
    """Return the ParallelConfig of one engine's workers, as vLLM's core leaves it for them."""
    parallel = SimpleNamespace(
        tensor_parallel_size=TENSOR, pipeline_parallel_size=1, data_parallel_size=DATA,
        data_parallel_size_local=DATA, data_parallel_rank=0, data_parallel_rank_local=None,
        data_parallel_index=0, numa_bind=False,
    )  # fmt: skip
    given = SimpleNamespace(
        parallel_config=parallel, kv_transfer_config=None, model_config=SimpleNamespace(is_moe=has_experts)
    )
    run_engine_core(vllm_config=given, dp_rank=engine, local_dp_rank=engine)
    return parallel


def receivers(has_experts: bool) -> set[str]:
    """Return the sockets of all ranks of the first replica's engines."""
    os.environ |= {"VERL_REPLICA_RANK": "0", "VERL_RAY_JOB_ID": "0"}
    found = set()
    for engine in range(DATA):
        parallel = parallel_config(engine, has_experts)
        for local_rank in range(TENSOR):
            worker = object.__new__(vLLMColocateWorkerExtension)
            worker.local_rank = local_rank
            worker.model_runner = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))
            found.add(worker._get_zmq_handle())
    return found


if __name__ == "__main__":
    importlib.import_module("vllm.tracing").instrument = lambda **_: lambda function: function
    core: Any = importlib.import_module("vllm.v1.engine.core")
    run_engine_core = core.EngineCoreProc.run_engine_core
    # An engine that has nothing to do, of either kind of model; and no handler of a signal.
    ended = SimpleNamespace(run_busy_loop=lambda: None, shutdown=lambda: None)
    core.EngineCoreProc = core.DPEngineCoreProc = lambda **_: ended
    core.signal = SimpleNamespace(SIGTERM=0, SIGINT=0, SIG_DFL=None, signal=lambda *_: None)
    core.SignalCallback = lambda _: SimpleNamespace(stop=lambda: None)
    sent = senders()
    heard = {"experts": receivers(has_experts=True), "dense": receivers(has_experts=False)}
    fault = any(sent - found for found in heard.values())
    counts = {kind: len(found) for kind, found in heard.items()}
    print(json.dumps({"fault": fault, "senders": len(sent), "receivers": counts}))
