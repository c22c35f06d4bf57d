"""The check of places: git may put a hunk where its lines happen to be, in another function or a second time."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from npu_rl.stack.hunks.hunk_match import split_lines
from npu_rl.stack.patches.patch_model import Patch

ReadFile = Callable[[str], bytes | None]
"""Returns a file of a version; None if it has none."""

_SHORTEST = 12  # characters of an added line that is no coincidence where upstream has it, too
_HEADING = re.compile(rb"[A-Za-z_$]")  # as git's own


class ChangedLines(NamedTuple):
    """Lines that a patch changes, below the first `above` lines of a file."""

    path: str
    above: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


def place_questions(
    old: Patch, new: Patch, read_old: ReadFile, read_new: ReadFile, *, by_hand: bool = False
) -> Iterator[str]:
    """Yield what a person has to look at in a patch for a new version.

    Args:
        old, new: The patch for each version.
        read_old, read_new: Each version before the patch.
        by_hand: Whether a person has made it: only lines that are changed as in the old patch are questioned.
    """
    left = list(places(old))
    for place in places(new):
        at = f"{place.path}:{place.above + 1}"
        same = [one for one in left if one[2:] == place[2:]]
        if not same:
            if not by_hand:
                yield f"{at}: these lines are not changed as in the patch"
            continue
        origin = min(same, key=lambda one: one.path != place.path)
        left.remove(origin)
        before, after = read_old(origin.path) or b"", read_new(place.path) or b""
        inside, now = enclosing(before, origin.above, origin.path), enclosing(after, place.above, place.path)
        if inside != now:
            yield f"{at}: it was in {inside or 'no function'}, and is in {now or 'none'} now"
        line = _upstream_line(place.added, before, after)
        if line is not None:
            yield f"{at}: upstream has this line meanwhile: {line}"
    for place in () if by_hand else left:
        yield f"{place.path}: its change at line {place.above + 1} of the old version is left out"


def places(patch: Patch) -> Iterator[ChangedLines]:
    """Yield the changed lines of a patch."""
    for file in patch.files:
        for hunk in file.hunks:
            for change in hunk.changes():
                yield ChangedLines(file.path, hunk.old_index + change.at, change.removed, change.added)


def _upstream_line(added: Sequence[bytes], before: bytes, after: bytes) -> str | None:
    """Return the first of the added lines that has come upstream since the old version."""
    came = {line.strip() for line in split_lines(after)} - {line.strip() for line in split_lines(before)}
    found = (line.strip() for line in added if line.strip() in came and len(line.strip()) >= _SHORTEST)
    return next((line.decode("utf-8", "replace") for line in found), None)


def enclosing(content: bytes, index: int, path: str) -> str:
    """Return the class and function around the line after `index` lines, or git's heading of it in other files."""
    if path.endswith((".py", ".pyi")):
        try:
            return ".".join(_names(ast.parse(content), index + 1))
        except (SyntaxError, ValueError, RecursionError):
            pass  # such as a template, or Python 2
    above = reversed(split_lines(content)[:index])
    return next((line.decode("utf-8", "replace").rstrip() for line in above if _HEADING.match(line)), "")


def _names(node: ast.AST, line: int) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.lineno <= line <= (child.end_lineno or 0):
                continue
            yield child.name
        yield from _names(child, line)
