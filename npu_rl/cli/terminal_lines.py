"""Lines as a terminal shows them: folded at its width, the words that label them in colour; as they are in a pipe.

A command to copy stays whole, on a line of its own if need be.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TextIO

_RED, _YELLOW, _CYAN, _GREEN, _BOLD = "1;31", "1;33", "1;36", "1;32", "1"
_STYLES = {
    **dict.fromkeys(("npu-rl", "error"), _RED),
    **dict.fromkeys(("advice", "warning", "UNPROVEN"), _YELLOW),
    **dict.fromkeys(("next", "Next", "fix"), _GREEN),
    **dict.fromkeys(("where", "why", "log"), _BOLD),
    "note": _CYAN,
}
_COLOURED = re.compile(rf"^(\s*)((?:{'|'.join(_STYLES)})(?:\[[a-z0-9-]+\]|:))(?=\s)", re.MULTILINE)


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
    return _COLOURED.sub(lambda found: f"{found[1]}\x1b[{_style(found[2])}m{found[2]}\x1b[0m", text)


def _style(label: str) -> str:
    return _STYLES[re.split(r"[\[:]", label)[0]]


# -- folding ------------------------------------------------------------------------------------------

_NAMES = (
    "setup|verify|plan|doctor|train|runs|report|status|diff|summary|faults|lock|weights|requirements|"
    "manifests|recipes|data|patches|bundle|store"
)
_GIT = "-[Cc]|add|am|apply|checkout|clone|commit|config|diff|fetch|init|log|rebase|remote|reset|restore|show|status"
_PROGRAMS = (
    rf"npu-rl (?:{_NAMES})|git (?:{_GIT})|pip (?:-|install|download|check|config)|python\S* [./~-]|export \w+=|"
    r"source \S*/|mkdir [\w./~-]|curl [\w./~-]|tensorboard -"
)
_NARROWEST = 20  # columns; a terminal of fewer, such as a new one with 0, folds by itself
_GLUE = "\0"  # for a space at which a line is not folded: `printable` lets no such character through
_LABEL = re.compile(
    r"\s*(?:(?:where|why|next|Next|fix|log):\s|\S+(?: \S+)*?\s{2})\s*"
)  # and the spaces behind it


@cache
def _copied() -> re.Pattern[str]:
    """Match what is copied: between backquotes, or a program's name to the end of the command, its comment or the line.

    Compiled for a long line on a terminal alone: it takes 0.7 ms, which every command would pay at its start.
    """
    return re.compile(rf"`[^`]+`|(?<![^\s(])(?:[A-Z_]+=\S* )*(?:\S*/)?(?:{_PROGRAMS})(?:(?!; | +# ).)*")


def fold_long_lines(text: str, stream: TextIO, indent: str | None = None) -> str:
    """Return lines as a stream shows them: folded at its width if it is a terminal.

    Args:
        text: One or more lines.
        stream: Where they are printed.
        indent: Beginning of the lines after the first, for text without a command to copy; None aligns them with
            the text behind the label.
    """
    if not stream.isatty():
        return text
    import shutil

    width = shutil.get_terminal_size().columns
    return "".join(
        f"{_folded(line.rstrip(chr(10)), width, indent)}{chr(10) * line.endswith(chr(10))}"
        for line in text.splitlines(keepends=True)
    )


def _folded(line: str, width: int, indent: str | None) -> str:
    if len(line) <= width or width < _NARROWEST:
        return line
    import textwrap

    folded = textwrap.fill(
        _glued(line) if indent is None else line,
        width,
        subsequent_indent=_hanging(line, width) if indent is None else indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return folded.replace(_GLUE, " ")


def _glued(line: str) -> str:
    """Return a line whose commands have no space to fold it at, and none before the first if only a label is."""
    begin = len(_label(line)) or len(line) - len(line.lstrip())

    def whole(found: re.Match[str]) -> str:
        return found[0].replace(" ", _GLUE)

    text = _copied().sub(whole, line[begin:])
    if _copied().match(line, begin):
        return line[:begin].replace(" ", _GLUE) + text
    return line[:begin] + text


def _label(line: str) -> str:
    """Return the label that a line begins with, or "". A command before spaces and a comment is not a label."""
    found = _LABEL.match(line)
    return "" if found is None or _copied().search(found[0]) else found[0]


def _hanging(line: str, width: int) -> str:
    label = _label(line)
    if label and len(label) < width // 2:
        return " " * len(label)
    return " " * (len(line) - len(line.lstrip()) + 2)
