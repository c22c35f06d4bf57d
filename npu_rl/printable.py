"""Text of others on its way to a person: it can't steer a terminal, or pass for a line of ours.

File names, titles, messages of git, indexes and servers come from anybody. Escape sequences (C0, C1), bidirectional
overrides and other characters without a shape are written as in Python's source: ESC becomes \\x1b.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with its line breaks and tabs, and nothing else that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """The text as one line: line breaks and tabs are escaped too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
