"""Colour for the first words of errors, warnings, notes and next steps: on a terminal, and not in a pipe or log."""

from __future__ import annotations

import os
import re
from typing import TextIO

_RED, _YELLOW, _CYAN, _GREEN, _BOLD = "1;31", "1;33", "1;36", "1;32", "1"
_STYLES = {
    **dict.fromkeys(("npu-rl", "error"), _RED),
    **dict.fromkeys(("advice", "warning", "UNPROVEN"), _YELLOW),
    **dict.fromkeys(("next", "Next", "fix"), _GREEN),
    **dict.fromkeys(("where", "why", "log"), _BOLD),
    "note": _CYAN,
}
_LABEL = re.compile(rf"^(\s*)((?:{'|'.join(_STYLES)})(?:\[[a-z0-9-]+\]|:))(?=\s)", re.MULTILINE)


def has_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colour, and the user has not set NO_COLOR."""
    return (
        not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb") and stream.isatty()
    )


def coloured(text: str, stream: TextIO) -> str:
    """Return text of ours for a stream, the words that label its lines in colour if the stream has it.

    Args:
        text: Escaped by `printable`: the only escape sequences are those that are added here.
    """
    if not has_colour(stream):
        return text
    return _LABEL.sub(lambda found: f"{found[1]}\x1b[{_style(found[2])}m{found[2]}\x1b[0m", text)


def _style(label: str) -> str:
    return _STYLES[re.split(r"[\[:]", label)[0]]
