"""Packages and environment variables for vLLM's engine on the stand-ins of `standins/vllm`."""

from __future__ import annotations

from pathlib import Path

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

_COMMON = {
    # The only plugin vLLM loads: the stand-ins' platform. vllm-ascend's are found in its dist-info and must stay out.
    "VLLM_PLUGINS": "npu_rl_cpu",
    # The MLA backend for CPUs is for the V0 engine and needs compiled code; without it keys and values are expanded.
    "VLLM_MLA_DISABLE": "1",
    # GiB of KV cache, a whole number; 0 means 4. All of it is written when it is allocated.
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
SERVER_ENVIRONMENT: dict[str, str] = {
    **_COMMON,
    # Binding is compiled code.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "no_proxy": "127.0.0.1,localhost",
}
ENVIRONMENT: dict[str, str] = {
    **_COMMON,
    # The rehearsal is of the V1 engine, and what it lacks has to be an error. If unset, vLLM silently falls back to V0:
    # on ARM, outside the main thread, for data types other than 16 bit (vllm/engine/arg_utils.py@0.9.1).
    "VLLM_USE_V1": "1",
    # One entry per rank. "auto" binds threads by NUMA node if the package `numa`, compiled code, is installed.
    "VLLM_CPU_OMP_THREADS_BIND": "|".join(["all"] * 64),
}


def vllm_version(code: Path) -> str | None:
    """Return a tree's vLLM version, without its local part, or None."""
    found = next(code.glob("vllm-*.dist-info"), None)
    return None if found is None else found.name[len("vllm-") : -len(".dist-info")].partition("+")[0]


def vllm_on_cpu(code: Path) -> dict[str, str]:
    """Return the environment of a tree's vLLM on a CPU: 0.9.1 in verl's workers, 0.18.0 as its server."""
    return SERVER_ENVIRONMENT if vllm_version(code) == "0.18.0" else ENVIRONMENT
