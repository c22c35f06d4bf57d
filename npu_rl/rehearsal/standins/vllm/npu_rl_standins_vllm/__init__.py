"""Stand-ins for compiled parts of vLLM's CPU platform, for vLLM 0.9.1 (with Intel's extension for PyTorch) and 0.18.0.

With this folder on PYTHONPATH and VLLM_PLUGINS=npu_rl_cpu, vLLM finds the platform plugin `npu_rl_cpu` in the
dist-info beside this package and imports its platform, which installs everything. No file of the code tree is edited,
nothing of vLLM is imported before vLLM does, and vllm-ascend's plugins stay out. If VLLM_PLUGINS does not name the
plugin, nothing here runs.

Real: vLLM's engine, scheduler, KV cache manager, model, sampler, expert-parallel groups and routing.
Not proven: vllm-ascend, and any kernel.
"""

from __future__ import annotations

from . import version

PLATFORMS = {"0.9.1": "platform.StandInCpuPlatform", "0.18.0": "server_platform.ServerCpuPlatform"}
"""The versions of vLLM that these stand-ins were written for and are tested with."""


def platform() -> str:
    """Return the name of the platform class, as the entry point of vLLM's plugin.

    vLLM hides what a plugin raises, so this raises nothing; importing the platform of an unknown version does
    (vllm/platforms/__init__.py@0.9.1, resolve_current_platform_cls_qualname).
    """
    return f"{__name__}.{PLATFORMS.get(version.found(), PLATFORMS['0.9.1'])}"
