"""vLLM 0.18.0's worker for CPUs, without libraries that it wants preloaded for speed."""

from __future__ import annotations

import os

import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class ServerCpuWorker(CPUWorker):  # type: ignore[misc]
    """The worker, with a device, which verl's weight transfer asserts (vllm_rollout/utils.py:231@v0.8.0)."""

    def init_device(self) -> None:
        """Initialize as CPUWorker, which looks for two names in LD_PRELOAD (cpu_worker.py:60)."""
        before = os.environ.get("LD_PRELOAD")
        os.environ["LD_PRELOAD"] = f"{before or ''} libtcmalloc libiomp"
        try:
            super().init_device()
        finally:
            if before is None:
                del os.environ["LD_PRELOAD"]
            else:
                os.environ["LD_PRELOAD"] = before
        self.device = torch.device("cpu")
