"""A KV cache that is made again for each generation, by `initialize_kv_cache` of the V1 engine's runner.

verl_patches of cann-recipes-train do so (workers/vllm_rollout/vllm_rollout_spmd.py:178@bcd3be7). vllm-ascend's runner
has one attention backend from the start (vllm_ascend/worker/model_runner_v1.py@v0.9.1rc2); vLLM 0.9.1's asserts that it
has none yet (vllm/v1/worker/gpu_model_runner.py, initialize_attn_backend).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from npu_rl_standins.used import count


def install_in(module: ModuleType) -> None:
    """Let GPUModelRunner, which the CPU's runner extends, make its attention backends again."""
    runner = module.GPUModelRunner  # type: ignore[attr-defined]
    original = runner.initialize_attn_backend

    def initialize_attn_backend(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.attn_backends:
            count("vllm.initialize_attn_backend")
            self.attn_backends.clear()
            self.attn_metadata_builders.clear()
        return original(self, *arguments, **named)

    runner.initialize_attn_backend = initialize_attn_backend
