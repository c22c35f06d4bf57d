"""Location of a hunk in a text and below its headings, and an explanation of why it does not fit.

`apply_exact` is the smallest possible applier: no fuzz and no offset. The tests compare it with `git apply`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from npu_rl.common.errors import PatchError
from npu_rl.stack.patches.patch_model import FilePatch, Hunk

Kind = Literal["exact", "offset", "ambiguous", "whitespace_only", "already_applied", "missing"]

_LINES = 200  # of a preimage: enough to tell where it belongs, and to show
_SIMILAR = 0.25  # of its lines, with fewer of which a place is not worth showing
_LONGEST = 110  # characters of a shown line


@dataclass(frozen=True)
class Location:
    """The place of a hunk's preimage. Lines count from 1.

    Attributes:
        kind: `exact`: at the stated line; `offset`: once, elsewhere; `ambiguous`: at several places, none of them the
            stated one; `whitespace_only`: there if white space is ignored; `already_applied`: the postimage is at the
            stated line; `missing`.
        line: The place; for `missing` the one with most of its lines, None if there are few.
        offset: The line minus the stated line.
        lines: Every place, for `ambiguous`.
        ratio: The share of its lines that are there, 0 to 1.
    """

    kind: Kind
    line: int | None
    offset: int = 0
    lines: tuple[int, ...] = ()
    ratio: float = 1.0


def split_lines(content: bytes) -> list[bytes]:
    """Return lines with their ends. Only a line feed ends a line: a lone carriage return or a form feed does not."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def fits(lines: Sequence[bytes], hunk: Hunk, index: int) -> bool:
    """Return whether the preimage follows the first `index` lines, and ends the file where it must."""
    old = hunk.old_lines
    end = index + len(old)
    if index < 0 or end > len(lines) or (hunk.ends_the_file and end != len(lines)):
        return False
    return lines[index:end] == old


def locate(content: bytes, hunk: Hunk) -> Location:
    """Find a hunk's preimage in the file as it is before the whole patch."""
    lines = split_lines(content)
    stated = hunk.old_index
    if fits(lines, hunk, stated):
        return Location("exact", stated + 1, ratio=1.0)
    if _is_applied(lines, hunk):
        return Location("already_applied", hunk.new_index + 1)
    found = [i for i in find_all(lines, hunk.old_lines) if fits(lines, hunk, i)]
    if len(found) == 1:
        return Location("offset", found[0] + 1, offset=found[0] - stated)
    if found:
        nearest = min(found, key=lambda i: abs(i - stated))
        return Location("ambiguous", nearest + 1, nearest - stated, tuple(i + 1 for i in found))
    squeezed = [_without_space(line) for line in lines]
    loose = find_all(squeezed, [_without_space(line) for line in hunk.old_lines])
    if loose and any(_without_space(line) for line in hunk.old_lines):
        nearest = min(loose, key=lambda i: abs(i - stated))
        exact = lines[nearest : nearest + len(hunk.old_lines)] == hunk.old_lines
        return Location("missing" if exact else "whitespace_only", nearest + 1, nearest - stated)
    return _most_similar(lines, hunk)


def _is_applied(lines: list[bytes], hunk: Hunk) -> bool:
    new = hunk.new_lines
    if not new:
        return not lines
    return any(lines[i : i + len(new)] == new for i in {hunk.new_index, hunk.old_index})


def find_all(lines: Sequence[object], pattern: Sequence[object]) -> list[int]:
    """Return every index of the pattern; an empty list for an empty pattern."""
    if not pattern:
        return []
    wanted = list(pattern)
    starts = range(len(lines) - len(wanted) + 1)
    return [i for i in starts if lines[i] == wanted[0] and list(lines[i : i + len(wanted)]) == wanted]


def _without_space(line: bytes) -> bytes:
    return b"".join(line.split())


def _most_similar(lines: list[bytes], hunk: Hunk) -> Location:
    """Return the place with the most lines of the preimage, white space and their order ignored."""
    old = hunk.old_lines[:_LINES]
    wanted = {squeezed for line in old if (squeezed := _without_space(line))}
    shared = [_without_space(line) in wanted for line in lines]
    width = min(len(old), len(lines))
    counts = [0, *accumulate(shared)]
    places = [(counts[start + width] - counts[start], start) for start in range(len(lines) - width + 1)]
    count, place = max(places, key=lambda found: (found[0], -abs(found[1] - hunk.old_index)))
    ratio = count / len(old) if old else 0.0
    if ratio < _SIMILAR:
        return Location("missing", None, ratio=0.0)
    return Location("missing", place + 1, place - hunk.old_index, ratio=min(ratio, 0.99))


def explain(content: bytes, hunk: Hunk, location: Location) -> str:
    """Return plain text: where the hunk fits, or the differences between its lines and the file's."""
    stated = hunk.old_index + 1
    line, offset = location.line, f"{location.offset:+d} lines from the stated line {stated}"
    if location.kind == "exact":
        return f"The hunk fits at line {stated}."
    if location.kind == "already_applied":
        return f"The change is already there, at line {line}."
    if location.kind == "offset":
        return f"The hunk fits at line {line} only, {offset}."
    if location.kind == "ambiguous":
        places = ", ".join(map(str, location.lines))
        return f"The hunk does not fit at line {stated}, but at {len(location.lines)} others: {places}."
    if line is None:
        return f"Nothing in the file is similar to the lines expected at line {stated}."
    if location.kind == "missing" and location.ratio == 1.0:
        return (
            f"The lines are there at line {line}, but the hunk has no context below its change,\n"
            "so it only fits the end of the file; regenerate it with `git diff -U3`."
        )
    old = hunk.old_lines
    found = split_lines(content)[line - 1 : line - 1 + len(old)]
    if location.kind == "whitespace_only":
        summary, show = f"Only white space differs at line {line}; tabs are shown as →, spaces as ·.", _spaced
    else:
        summary, show = f"The most similar place is line {line}, {offset}.", _shown
    from difflib import unified_diff  # what fits, pays nothing for it

    rows = list(unified_diff(list(map(show, old)), list(map(show, found)), lineterm=""))[2 : _LINES + 2]
    placed = (
        re.sub(r"^@@ .*\+(\d+).* @@$", lambda at: f"@@ line {int(at[1]) + line - 1} @@", row) for row in rows
    )
    return "\n".join([f"{summary} Expected (-) and found (+):", *placed])


def _shown(raw: bytes) -> str:
    """Return a line for a terminal, which must not obey a patch."""
    ended = raw.endswith(b"\n")
    text = raw.removesuffix(b"\n").decode("utf-8", "replace").replace("\r", "␍").replace("\t", "    ")
    text = "".join(c if c.isprintable() else "�" for c in text) + ("" if ended else " ⟨no newline⟩")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _spaced(raw: bytes) -> str:
    return _shown(raw.replace(b"\t", "→".encode()).replace(b" ", "·".encode()))


def apply_exact(content: bytes | None, file_patch: FilePatch, *, name: str = "") -> bytes | None:
    """Return the file after the patch; None is an absent file.

    Args:
        content: The file before the patch.
        file_patch: The patch of this file.
        name: The patch's name, for messages.

    Raises:
        PatchError: If a hunk does not fit; with the patch's line, and expected and found lines side by side.
    """

    def refused(what: str, why: str | None = None) -> PatchError:
        hint = "Check that the patch is for this version of the component."
        return PatchError(f"{file_patch.path} {what}", where=f"{name}:{file_patch.line}", why=why, hint=hint)

    if (content is None) != (file_patch.old_path is None):
        raise refused("does not exist" if content is None else "exists already")
    lines = split_lines(content or b"")
    result: list[bytes] = []
    done = 0
    for hunk in file_patch.hunks:
        index = hunk.old_index
        if index < done or not fits(lines, hunk, index):
            raise _refusal(content or b"", hunk, file_patch.path, name)
        result += lines[done:index] + hunk.new_lines
        done = index + hunk.old_count
    result += lines[done:]
    if file_patch.new_path is not None:
        return b"".join(result)
    if result:
        why = f"{len(result)} of its {len(lines)} lines would be left."
        raise refused("holds more than the patch deletes", why)
    return None


def _refusal(content: bytes, hunk: Hunk, path: str, name: str) -> PatchError:
    return PatchError(
        f"Hunk {hunk.number} does not fit {path} at line {hunk.old_index + 1}",
        where=f"{name}:{hunk.line}, hunk {hunk.number}",
        why=explain(content, hunk, locate(content, hunk)),
        hint="Check that the patch is for this version of the component, and port it if it is not.",
    )


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
