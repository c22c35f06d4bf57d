"""A text that remembers its quotes."""

from __future__ import annotations


class Quoted(str):
    """A text that was written in quotes or as a block: where a type is guessed, it is not a number.

    Equal to the plain text. Only values in open mappings keep it; a field of a model gets the plain text.
    """

    __slots__ = ()
