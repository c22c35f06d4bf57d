"""Adaptations that run inside the training processes. Patches to upstream are small hooks that call this package.

Every code tree includes it as the top-level package `npu_rl_runtime`, with its own tree id in the lock. Use relative
imports only, of the standard library and, lazily and where necessary, of torch.
"""

from .switches import enabled

__all__ = ["enabled"]
