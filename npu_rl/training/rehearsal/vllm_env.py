"""The environment in which vLLM's engine runs on the stand-ins of `on_path_vllm`."""

from __future__ import annotations

ENVIRONMENT: dict[str, str] = {
    # The only plugin vLLM loads: the stand-ins' platform. vllm-ascend's are found in its dist-info and must stay out.
    "VLLM_PLUGINS": "npu_rl_cpu",
    # Its V1 engine is what is rehearsed, and anything V1 can't do an error. Unset, vLLM falls back to V0 without one:
    # on ARM, outside the main thread, for other types than 16 bit (vllm/engine/arg_utils.py@0.9.1).
    "VLLM_USE_V1": "1",
    # Its MLA backend for CPUs is for the V0 engine and needs compiled code; without it keys and values are laid out.
    "VLLM_MLA_DISABLE": "1",
    # GiB of KV cache, a whole number; 0 means 4. Every byte is written when it is made.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One entry per rank. "auto" binds threads by NUMA node if the package `numa` is there, with compiled code.
    "VLLM_CPU_OMP_THREADS_BIND": "|".join(["all"] * 64),
}
