"""The `series` file of a patchset, changed without losing its comments."""

from __future__ import annotations

import re
from collections.abc import Sequence


def with_names(text: str, names: Sequence[str]) -> str:
    """Return the text of a `series` with these names in this order.

    A name keeps its line and the comments above it; text above the first name and below the last one stays in place.
    """
    blocks, tail = _blocks(text)
    if [name for name, _ in blocks] == list(names):
        return text
    known = dict(blocks)
    top, bottom = "", tail
    if blocks and blocks[0][0] != (names[0] if names else None):
        first, lines = blocks[0]
        *above, own = lines.splitlines(keepends=True)
        top, known[first] = "".join(above), own
    body = "".join(known.get(name, f"{name}\n") for name in names)
    if bottom and blocks:
        return top + body + bottom
    return top + bottom + body


def _blocks(text: str) -> tuple[list[tuple[str, str]], str]:
    """Return each name with its line and the comments above it, and what follows the last name."""
    blocks: list[tuple[str, str]] = []
    lines = ""
    for line in text.splitlines():
        lines += f"{line}\n"
        words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()
        if words:  # the name, and perhaps `-pN`
            blocks.append((words[0].removeprefix("./"), lines))
            lines = ""
    return blocks, lines
