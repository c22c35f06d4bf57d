from __future__ import annotations

from tests.resolve.world import world

__all__ = ["world"]
