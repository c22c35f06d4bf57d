"""See the package's text."""

from __future__ import annotations

from . import modules

__all__ = ["modules"]
