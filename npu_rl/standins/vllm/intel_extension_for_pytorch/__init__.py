"""npu-rl's stand-in for Intel's extension for PyTorch: the paged attention that vLLM 0.9.1 takes from it, no more.

It has no metadata of its own, so that what asks for the package's version (transformers, accelerate) goes without.
"""

from __future__ import annotations

from . import llm

NPU_RL_STANDIN = True

__all__ = ["NPU_RL_STANDIN", "llm"]
