"""vLLM 0.9.1's own CPU platform with the stand-ins installed; vLLM imports it on first use of its platform.

Importing it raises RuntimeError if the vLLM on the path is not the version the stand-ins were written for.
"""

from __future__ import annotations

from typing import Any

from npu_rl_standins.hooks import after_import

from . import cache, communicator, draws, experts, noise, ops, sampler, speculation, version

version.check("0.9.1")

from vllm.platforms.cpu import CpuPlatform  # noqa: E402  only after the check of the version

ops.install()
speculation.install()
after_import("vllm.model_executor.layers.fused_moe.layer", experts.install_in)
after_import("vllm.distributed.device_communicators.cpu_communicator", communicator.install_in)
after_import("vllm.distributed.utils", communicator.use_gloo_for_hccl)
after_import("vllm.v1.worker.gpu_model_runner", cache.install_in)
after_import("vllm.v1.sample.sampler", sampler.install_in)
after_import("vllm.v1.sample.sampler", draws.install_in)
after_import("vllm.entrypoints.llm", noise.note_generations)


class StandInCpuPlatform(CpuPlatform):
    """The CPU platform; `is_cpu()` is True, as in vLLM's own build for CPUs."""

    # vLLM compiles its grouped top-k, by default with inductor, which needs a C++ compiler.
    simple_compile_backend = "eager"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Update the configuration as vLLM does, and compile nothing, as with `enforce_eager`.

        0.9.1 otherwise traces the model on a CPU in a way that needs the torch of its time.
        """
        from vllm.config import CompilationLevel

        vllm_config.compilation_config.level = CompilationLevel.NO_COMPILATION
        if (
            vllm_config.model_config is None
        ):  # asked for outside an engine, as verl_patches of cann-recipes-train do
            return
        super().check_and_update_config(vllm_config)
