"""npu-rl's stand-in for Intel's extension for PyTorch: only the paged attention that vLLM 0.9.1 imports.

It has no metadata, so that code which asks for the package's version (transformers, accelerate) does not use it.
"""

from __future__ import annotations

from . import llm

NPU_RL_STANDIN = True

__all__ = ["NPU_RL_STANDIN", "llm"]
