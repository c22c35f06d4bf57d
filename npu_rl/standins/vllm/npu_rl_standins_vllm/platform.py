"""vLLM's own CPU platform, with the stand-ins put in place. Imported by vLLM when it first asks for its platform.

Raises RuntimeError on import where the vLLM on the path is not the version the stand-ins were written for.
"""

from __future__ import annotations

from typing import Any

from npu_rl_standins.hooks import after_import

from . import VLLM_VERSION, communicator, experts, ops, speculation, version

version.check(VLLM_VERSION)

from vllm.platforms.cpu import CpuPlatform  # noqa: E402  not before the version is known

ops.install()
speculation.install()
after_import("vllm.model_executor.layers.fused_moe.layer", experts.put_in_place)
after_import("vllm.distributed.device_communicators.cpu_communicator", communicator.put_in_place)


class StandInCpuPlatform(CpuPlatform):
    """The CPU platform. `is_cpu()` holds, as of vLLM's own build for CPUs."""

    # vLLM compiles its grouped top-k: with inductor, which wants a C++ compiler, unless told otherwise.
    simple_compile_backend = "eager"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """As vLLM's, and nothing is compiled, as with `enforce_eager`: 0.9.1 traces the model on a CPU all the same,
        in a way that needs the torch of its day."""
        from vllm.config import CompilationLevel

        vllm_config.compilation_config.level = CompilationLevel.NO_COMPILATION
        super().check_and_update_config(vllm_config)
