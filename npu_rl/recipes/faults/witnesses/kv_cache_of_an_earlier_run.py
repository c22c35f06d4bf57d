"""Show whether an engine's KV cache is limited to the size that an earlier run wrote to a file.

Called are NPUWorker.determine_available_memory and, for the file, write_kv_cache_bytes_to_file, which the model runner
calls when it has captured torchair's graphs (vllm_ascend/worker/worker_v1.py and model_runner_v1.py@v0.9.1rc2), with
the tree's own configuration: graphs on, cached graphs off. The device's memory is made here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Any

GIB = 1024**3
TOTAL, BEFORE, FREE, PEAK = 64 * GIB, 60 * GIB, 40 * GIB, 20 * GIB


def main(folder: str) -> dict[str, object]:
    os.environ["TORCHAIR_CACHE_HOME"] = os.path.join(
        folder, ".torchair_cache"
    )  # read when vllm_ascend is imported
    import torch
    import torch_npu

    torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend/utils.py annotates with, nothing more
    import vllm.platforms

    vllm.platforms.current_platform.device_name  # noqa: B018  finds vllm-ascend's platform, as vLLM's first user does
    allocator: Any = ModuleType("vllm_ascend.device_allocator.camem")  # of the sleep mode, for NPUs only
    allocator.CaMemAllocator = None
    sys.modules[allocator.__name__] = allocator
    from vllm_ascend import ascend_config, utils
    from vllm_ascend.worker.worker_v1 import NPUWorker

    graphs = {"enabled": True, "graph_batch_sizes": [64]}
    ascend_config.init_ascend_config(
        SimpleNamespace(additional_config={"refresh": True, "torchair_graph_config": graphs})
    )
    stats = {"allocated_bytes.all.peak": PEAK, "allocated_bytes.all.current": PEAK}
    torch.npu.mem_get_info = torch_npu.npu.mem_get_info = lambda *_: (FREE, TOTAL)
    torch_npu.npu.memory_stats = lambda *_: stats
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

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
    torch.distributed.destroy_process_group()
    return {
        "fault": after < alone,
        "GiB alone": round(alone / GIB, 2),
        "GiB after a run with less": round(after / GIB, 2),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        figures = main(folder)
    print("\n" + json.dumps(figures))
