from __future__ import annotations

from tests.locking.world import world

__all__ = ["world"]
