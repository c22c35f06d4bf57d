"""Show whether an engine's KV cache is limited to the size that an earlier run wrote to a file.

Called are NPUWorker.determine_available_memory and, for the file, write_kv_cache_bytes_to_file, which the model runner
calls when it has captured torchair's graphs (vllm_ascend/worker/worker_v1.py and model_runner_v1.py@v0.9.1rc2), with
the tree's own configuration: graphs on, cached graphs off. The device's memory is made here.
"""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace
from typing import Any

from witness_common import find_ascend, make_module, only_rank, show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

GIB = 1024**3
TOTAL, BEFORE, FREE, PEAK = 64 * GIB, 60 * GIB, 40 * GIB, 20 * GIB


def main(folder: str) -> dict[str, Any]:
    # Read when vllm_ascend is imported.
    os.environ["TORCHAIR_CACHE_HOME"] = os.path.join(folder, ".torchair_cache")
    import torch
    import torch_npu

    find_ascend()
    # Of the sleep mode, for NPUs only.
    make_module("vllm_ascend.device_allocator.camem", CaMemAllocator=None)
    from vllm_ascend import ascend_config, utils
    from vllm_ascend.worker.worker_v1 import NPUWorker

    graphs = {"enabled": True, "graph_batch_sizes": [64]}
    ascend_config.init_ascend_config(
        SimpleNamespace(additional_config={"refresh": True, "torchair_graph_config": graphs})
    )
    stats = {"allocated_bytes.all.peak": PEAK, "allocated_bytes.all.current": PEAK}
    torch.npu.mem_get_info = torch_npu.npu.mem_get_info = lambda *_: (FREE, TOTAL)
    torch_npu.npu.memory_stats = lambda *_: stats

    def available(share: float) -> int:
        worker = SimpleNamespace(
            init_npu_memory=BEFORE,
            cache_config=SimpleNamespace(gpu_memory_utilization=share),
            model_runner=SimpleNamespace(profile_run=lambda: None, new_kv_cache_bytes=-1),
        )
        return NPUWorker.determine_available_memory(worker)

    alone = available(0.9)
    utils.write_kv_cache_bytes_to_file(0, available(0.5))
    after = available(0.9)
    return {
        "fault": after < alone,
        "GiB alone": round(alone / GIB, 2),
        "GiB after a run with less": round(after / GIB, 2),
    }


if __name__ == "__main__":
    with only_rank(), tempfile.TemporaryDirectory() as folder:
        show(lambda: main(folder))
