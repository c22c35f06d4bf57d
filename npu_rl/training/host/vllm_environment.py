"""Packages and environment variables for vLLM's engine on the stand-ins of `standins/vllm`."""

from __future__ import annotations

# Packages that vLLM imports and the trainer does not, found by hiding packages: the extra `rehearsal-vllm`.
REQUIREMENTS: tuple[str, ...] = (
    "blake3==1.0.11",
    "cachetools==8.0.1",
    "compressed-tensors==0.10.1",
    "fastapi==0.165.0",
    "gguf==0.19.0",
    "msgspec==0.22.0",
    "openai==1.109.1",
    "prometheus-client==0.26.0",
    "py-cpuinfo==9.0.0",
    "pyzmq==27.3.0",
)

ENVIRONMENT: dict[str, str] = {
    # The only plugin vLLM loads: the stand-ins' platform. vllm-ascend's are found in its dist-info and must stay out.
    "VLLM_PLUGINS": "npu_rl_cpu",
    # The rehearsal is of the V1 engine, and what it lacks has to be an error. If unset, vLLM silently falls back to V0:
    # on ARM, outside the main thread, for data types other than 16 bit (vllm/engine/arg_utils.py@0.9.1).
    "VLLM_USE_V1": "1",
    # The MLA backend for CPUs is for the V0 engine and needs compiled code; without it keys and values are expanded.
    "VLLM_MLA_DISABLE": "1",
    # GiB of KV cache, a whole number; 0 means 4. All of it is written when it is allocated.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One entry per rank. "auto" binds threads by NUMA node if the package `numa`, compiled code, is installed.
    "VLLM_CPU_OMP_THREADS_BIND": "|".join(["all"] * 64),
}
