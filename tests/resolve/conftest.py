from __future__ import annotations

from tests.resolve.world import world
from tests.sources.package_index import index

__all__ = ["index", "world"]
