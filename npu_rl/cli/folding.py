"""Folding of long lines on a terminal, at its width; a line with a command to copy stays whole."""

from __future__ import annotations

import re
from typing import TextIO

_COMMAND = re.compile(r"(?:^|[\s`(])(?:npu-rl|git|pip|export|source|mkdir|curl|python\S*) [\w./~-]")
_LABEL = re.compile(r"\s*(?:(?:where|why|next|fix|log):\s|\S+(?: \S+)*?\s{2})\s*")  # and the spaces behind it


def fold_long_lines(text: str, stream: TextIO, indent: str | None = None) -> str:
    """Return lines as a stream shows them: folded at its width if it is a terminal.

    Args:
        text: One or more lines.
        stream: Where they are printed.
        indent: What the lines after the first begin with, of text without a command to copy; None aligns them with
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
    if len(line) <= width or (indent is None and _COMMAND.search(line)):
        return line
    import textwrap

    return textwrap.fill(
        line,
        width,
        subsequent_indent=_hanging(line, width) if indent is None else indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _hanging(line: str, width: int) -> str:
    label = _LABEL.match(line)
    if label is not None and len(label[0]) < width // 2:
        return " " * len(label[0])
    return " " * (len(line) - len(line.lstrip()) + 2)
