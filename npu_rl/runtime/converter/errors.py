"""What stops a conversion."""

from __future__ import annotations


class ConversionError(RuntimeError):
    """A model, a layout or a folder that can't be converted: what, where, why, and what to do."""
