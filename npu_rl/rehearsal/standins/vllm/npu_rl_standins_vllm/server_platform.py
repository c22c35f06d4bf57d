"""vLLM 0.18.0's own CPU platform with the stand-ins installed, for the servers of verl 0.8.

Importing it raises RuntimeError if the vLLM on the path is not the version the stand-ins were written for.
"""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.hooks import after_import

from . import cached_attention, draws, ops, speculation, version

version.check("0.18.0")

from vllm.platforms.cpu import CpuPlatform  # noqa: E402  only after the check of the version

ops.install(cached_attention.OPS)
speculation.install()
after_import("vllm.v1.sample.sampler", draws.install_in)

# cpu_attn.py and cpu_fused_moe.py@0.18.0 ask for it, and torch 2.13 does not have it any more.
if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):
    torch._C._cpu._is_amx_tile_supported = lambda: False  # type: ignore[attr-defined]


class ServerCpuPlatform(CpuPlatform):
    """The CPU platform; `is_cpu()` is True, as in vLLM's own build for CPUs."""

    # vLLM compiles its grouped top-k, by default with inductor, which needs a C++ compiler.
    simple_compile_backend = "eager"

    @classmethod
    def import_kernels(cls) -> None:
        """Import nothing: the operators are in place, and CpuPlatform would warn."""

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return a name of the device, which verl's weight transfer forms its socket with (vllm_rollout.py:97)."""
        return f"CPU-{device_id}"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Update the configuration as vLLM does, compile nothing, and take a worker that needs no preloaded library."""
        from vllm.config import CompilationMode

        vllm_config.compilation_config.mode = CompilationMode.NONE
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = f"{__package__}.server_worker.ServerCpuWorker"
        super().check_and_update_config(vllm_config)
