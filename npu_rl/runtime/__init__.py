"""Adaptations that run inside the training processes: patches to upstream are small hooks that call this package.

It is laid into every code tree as the top-level package `npu_rl_runtime`, with a tree id of its own in
the lock. Relative imports only; the standard library, and torch where it must be, imported lazily.
"""

from .switches import enabled

__all__ = ["enabled"]
