"""The blocks around a line, told by indentation: a branch of an `if`, a list by its name, a class of C++."""

from __future__ import annotations

import re
from collections.abc import Sequence

from npu_rl.stack.hunks.hunk_headings import SIGNATURE

_CONTINUES = re.compile(rb"[ \t]*(?:}[ \t]*)?(?:else|elif|except|finally|catch)\b")
_PYTHON_SCOPE = re.compile(rb"[ \t]*(?:async[ \t]+def|def|class)\b")
_CLOSES = re.compile(rb"[ \t]*[)\]}]")
_ASSIGNED = re.compile(rb"([\w., ]+?) = .*[(\[{]")
_REMARK = re.compile(rb"[ \t]*(?:#|//)")


def blocks_around(lines: Sequence[bytes], index: int, *, python: bool) -> tuple[bytes, ...]:
    """Return the heads of the blocks around a line, the innermost first.

    The head of an `else` has that of its `if` with it. The arguments of a function are left out where it is not
    Python's. Python's heads end at the innermost class or function, whose name is known.
    """
    heads: list[bytes] = []
    margin = indent(lines[index])
    while margin and (head := _line_above(lines, index, margin - 1)) is not None:
        index, margin = head, indent(lines[head])
        if _CLOSES.match(lines[index]) and not _CONTINUES.match(lines[index]):
            opened = _line_above(lines, index, margin)
            index = index if opened is None else opened
        if python and _PYTHON_SCOPE.match(lines[index]):
            break
        first = _first_branch(lines, index)
        heads.append(b" ... ".join(_head(lines[i], python) for i in dict.fromkeys((first, index))))
        index = first
    return tuple(heads)


def indent(line: bytes) -> int:
    """Return the number of blanks before the first letter of a line."""
    return len(line) - len(line.lstrip(b" \t"))


def _line_above(lines: Sequence[bytes], index: int, most: int) -> int | None:
    """Return the next line above that is indented by at most so much, without comments and blank lines."""
    above = range(index - 1, -1, -1)
    return next(
        (i for i in above if lines[i].strip() and not _REMARK.match(lines[i]) and indent(lines[i]) <= most),
        None,
    )


def _first_branch(lines: Sequence[bytes], index: int) -> int:
    """Return the line of the `if` or `try` that a line goes on; the line itself if it goes on none."""
    margin = indent(lines[index])
    first = index
    while _CONTINUES.match(lines[first]):
        above = _line_above(lines, first, margin)
        if above is None or indent(lines[above]) < margin:
            return index
        first = above
    return first


def _head(line: bytes, python: bool) -> bytes:
    text = line.strip()
    if assigned := _ASSIGNED.fullmatch(text):
        return assigned[1]  # what is called to make it may have another name
    if not python and SIGNATURE.match(text.decode("utf-8", "replace")):
        return text.partition(b"(")[0].strip()
    return text
