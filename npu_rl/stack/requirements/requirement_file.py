r"""Requirements files, as pip reads them: comments, continued lines, `-r`, options of a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npu_rl.stack.requirements.reading import Reading, joined, numbered_bounds

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")  # blanks before it are stripped: to match them took their square
_INCLUDE = re.compile(r"(?:-[rc]\s*|--(?:requirement|constraint)[\s=]\s*)(\S.*)")
_EDITABLE = re.compile(r"-e\b|--editable\b")


def read_requirement_file(text: str) -> Reading:
    """Return the requirements of a requirements file.

    A constraints file (`-c`) bounds versions like a requirements file (`-r`). Options of pip, such as an index, bound
    nothing.
    """
    lines = list(_logical_lines(text))
    includes = (included[1].strip("\"'") for _, line in lines if (included := _INCLUDE.fullmatch(line)))
    bounds = numbered_bounds(
        (f"line {number}", line.partition(" --")[0])  # --hash=... and others of the line
        for number, line in lines
        if not line.startswith("-") or _EDITABLE.match(line)
    )
    return joined(Reading(includes=tuple(includes)), bounds)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines, without comments, and with lines that end in a backslash joined."""
    begun = 0
    parts: list[str] = []
    for number, line in enumerate((*text.splitlines(), ""), 1):
        begun = begun if parts else number
        stripped = _COMMENT.sub("", line).strip()
        parts.append(stripped.rstrip("\\").strip())
        if stripped.endswith("\\"):
            continue
        whole = " ".join(filter(None, parts))
        parts = []
        if whole:
            yield begun, whole
