"""Text that was quoted in YAML."""

from __future__ import annotations


class Quoted(str):
    """Text in quotes or a block, which is never read as a number, even without a declared type.

    It equals the plain text. Only values in open mappings keep it; a field of a model gets the plain text.
    """

    __slots__ = ()
