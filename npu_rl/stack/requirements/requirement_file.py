r"""Requirements files, as pip reads them: comments, continued lines, `-r`, options of a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npu_rl.stack.requirements.reading import Reading, bound_of

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")  # blanks before it are stripped: to match them took their square
_INCLUDE = re.compile(r"(?:-[rc]\s*|--(?:requirement|constraint)[\s=]\s*)(\S.*)")
_MOST_LINES = 2000  # that declare something; each takes about a millisecond
_EDITABLE = re.compile(r"-e\b|--editable\b")


def read_requirement_file(text: str) -> Reading:
    """Return the requirements of a requirements file.

    A constraints file (`-c`) bounds versions like a requirements file (`-r`). Options of pip, such as an index, bound
    nothing.
    """
    bounds: list[str] = []
    includes: list[str] = []
    unread: list[str] = []
    for declared, (number, line) in enumerate(_logical_lines(text)):
        if declared == _MOST_LINES:
            unread.append(f"line {number} and what follows: more than {_MOST_LINES} lines")
            break
        included = _INCLUDE.fullmatch(line)
        if included:
            includes.append(included[1].strip("\"'"))
        elif _EDITABLE.match(line):
            unread.append(f"line {number}: an editable requirement")
        elif not line.startswith("-"):
            try:
                bound = bound_of(line.partition(" --")[0])  # --hash=... and others of the line
            except ValueError as error:
                unread.append(f"line {number}: {error}")
            else:
                bounds += [bound] if bound is not None else []
    return Reading(tuple(dict.fromkeys(bounds)), tuple(dict.fromkeys(includes)), tuple(unread))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines, without comments, and with lines that end in a backslash joined."""
    begun = 0
    parts: list[str] = []
    for number, line in enumerate((*text.splitlines(), ""), 1):
        if not parts:
            begun = number
        stripped = _COMMENT.sub("", line).strip()
        continued = stripped.endswith("\\")
        parts.append(stripped.rstrip("\\").strip())
        if continued:
            continue
        whole = " ".join(filter(None, parts))
        parts = []
        if whole:
            yield begun, whole
