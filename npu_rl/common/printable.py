r"""Escaping of untrusted text, so that it can't control a terminal.

File names, titles and messages of git, indexes and servers are untrusted. Escape sequences (C0, C1), bidirectional
overrides and other invisible characters are written as in Python's source: ESC becomes \x1b.
"""

from __future__ import annotations

import re

_BYTES = re.compile("[\udc80-\udcff]+")  # bytes that the locale's encoding could not decode (PEP 383)


def printable(text: str) -> str:
    """Escape control and invisible characters, except for line breaks and tabs."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in _as_utf8(text))


def one_line(text: str) -> str:
    """Escape control and invisible characters, line breaks and tabs included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in _as_utf8(text))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 file, 2 files."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _as_utf8(text: str) -> str:
    """Return the text with bytes that are UTF-8 decoded; in an ASCII locale, Python has not decoded any."""
    return _BYTES.sub(_decoded, text)


def _decoded(found: re.Match[str]) -> str:
    return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
