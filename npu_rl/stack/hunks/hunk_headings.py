"""Check that a hunk is below the heading it was made for.

git and GNU diff write a heading after a hunk's second `@@`: the last line above the hunk that their pattern for
functions matches. Lines alone can't tell twins apart: a hunk of `one` fits `two` as well if both have the same lines.
So the heading that git would write at the place is compared with the hunk's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from npu_rl.stack.patches.patch_model import Hunk

# git's pattern for every language, and that for `*.py diff=python`, which GitHub uses too.
_ANY = re.compile(r"[A-Za-z_$]")
_PYTHON = re.compile(r"[ \t]*(?:class|(?:async[ \t]+)?def)[ \t]")
_DEFINITION = re.compile(r"(?:async[ \t]+)?(?P<kind>class|def)[ \t]+(?P<name>\w+)(?P<rest>.?)")
_SHORTEST_CUT = 39  # letters of the shortest heading that was cut off: GNU diff keeps 40, git 80
_SHOWN = 5


def misplaced(content: bytes, hunk: Hunk, line: int, path: str) -> str | None:
    """Return why the heading of a hunk that fits at a line names another function; None if it does not.

    Only a function or class of Python is compared by name; another heading must be a line of the file, whose place
    decides.
    """
    heading = hunk.section.strip().rstrip("\N{REPLACEMENT CHARACTER}")
    if not heading:
        return None
    lines = [text.decode("utf-8", "replace").rstrip("\r") for text in content.split(b"\n")]
    wanted = _DEFINITION.match(heading) if path.endswith((".py", ".pyi")) else None
    above = [n for pattern in (_ANY, _PYTHON) if (n := _last_match(pattern, lines, line))]
    places = [n for n, text in enumerate(lines, 1) if _is_heading(text.strip(), heading, wanted)]
    if set(above) & set(places) or (wanted is None and not places):
        return None
    if wanted is None and not _by_one_pattern(lines, places, above):
        return None
    if wanted is not None and (not above or _is_outside(lines, hunk, max(above))):
        return None
    here = f"below `{lines[max(above) - 1].strip()}` (line {max(above)})" if above else "above every function"
    numbers = ", ".join(map(str, places[:_SHOWN])) + (", ..." if len(places) > _SHOWN else "")
    where = f"is `{heading}` (line {numbers})" if places else f"is `{heading}`, which is not in the file"
    return f"It fits at line {line}, {here}; its heading {where}."


def _by_one_pattern(lines: Sequence[str], places: Sequence[int], above: Sequence[int]) -> bool:
    """Return whether the pattern that takes the lines above may have taken the heading, too."""
    alike = {"(" in lines[n - 1] for n in (*places, *above)}
    return len(alike) == 1 and all(_ANY.match(lines[n - 1]) for n in places)


def _is_heading(text: str, heading: str, wanted: re.Match[str] | None) -> bool:
    """Return whether a line is the one of a heading, which may be cut; of a definition its name decides."""
    if wanted is None:
        return text.startswith(heading)
    found = _DEFINITION.match(text)
    if found is None or found["kind"] != wanted["kind"]:
        return False
    cut = not wanted["rest"] and len(heading) >= _SHORTEST_CUT
    return found["name"].startswith(wanted["name"]) if cut else found["name"] == wanted["name"]


def _is_outside(lines: Sequence[str], hunk: Hunk, heading: int) -> bool:
    """Return whether a change is in no function: below another line of the first column, or not indented deeper."""
    change = next(hunk.changes())
    changed = [raw.decode("utf-8", "replace") for raw in change.removed or change.added]
    own = [_indent(text) for text in changed if text.strip()]
    above = lines[heading - 1]
    return not _PYTHON.match(above) or (bool(own) and min(own) <= _indent(above))


def _last_match(pattern: re.Pattern[str], lines: Sequence[str], before: int) -> int | None:
    """Return the number of the last line above `before` that matches, as git finds a heading."""
    return next((n for n in range(min(before - 1, len(lines)), 0, -1) if pattern.match(lines[n - 1])), None)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
