"""The subpackage with the module that vLLM imports."""

from __future__ import annotations

from . import modules

__all__ = ["modules"]
