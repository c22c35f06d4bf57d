"""Merge of one change into a new version whose surrounding lines differ."""

from __future__ import annotations

import re
from typing import NamedTuple

from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.enclosing_blocks import indent
from npu_rl.stack.port.file_scopes import is_telling
from npu_rl.stack.port.line_alignment import ScopeAlignment
from npu_rl.stack.port.placed_change import Edit, PlacedChange, context_lines

_IMPORT = re.compile(rb"(?:import [\w., ]+|from [\w.]+ import [\w., ]+)(?: *#.*)?")
_LEAVES = re.compile(rb"\s*(?:(?:return|raise|break|continue|yield|else|elif|except|finally|case)\b|[)\]}])")
_MOST_BESIDE = 12  # lines that the new version added at the place of an addition
AROUND = "the lines around it have changed"
BELOW = "the line below its place has changed; it stays below the one above it"
BESIDE = "the new version adds lines at this place, too; both are kept, the patch's below"


class Unmergeable(Exception):
    """A change without a place in the new version."""


class MergedChange(NamedTuple):
    """A change placed in the new version, and a description of the differences around it."""

    edit: Edit
    why: str


class ChangeMerger:
    """A merger of changes into a new version. A line that was changed on both sides is never merged."""

    def __init__(self, aligned: ScopeAlignment) -> None:
        self._aligned, self._old, self._new = aligned, aligned.old, aligned.new

    def merge(self, hunk: Hunk, change: PlacedChange) -> MergedChange:
        """Return the change placed in the new version. Raises Unmergeable."""
        pairs = self._aligned.pairs(change.frame)
        if change.removed:
            start = self._removed_place(hunk, change, pairs)
            return MergedChange(Edit(start, start + len(change.removed), change.added), AROUND)
        free = self._import_place(hunk, change, pairs)
        if free is not None:
            return MergedChange(Edit(free, free, change.added), AROUND)
        start, why = self._gap(change, pairs)
        if not self._is_told(hunk, pairs, start - change.at):
            raise Unmergeable("no line around it identifies its place")
        return MergedChange(Edit(start, start, change.added), why)

    def _removed_place(self, hunk: Hunk, change: PlacedChange, pairs: dict[int, int]) -> int:
        """Return the place of the removed lines, if they or the lines around them identify it."""
        start = pairs.get(change.at)
        if start is None or any(pairs.get(change.at + i) != start + i for i in range(len(change.removed))):
            raise Unmergeable(self._changed_text(change, pairs))
        shift = start - change.at
        around = [pairs.get(i) == i + shift for i in (change.at - 1, change.end)]
        if all(around):
            return start
        if any(map(is_telling, change.removed)):
            is_alone = all(len(f.places(change.removed, change.inside)) == 1 for f in (self._old, self._new))
            if is_alone or (any(around) and self._is_told(hunk, pairs, shift)):
                return start
        raise Unmergeable(
            f"the lines around line {start + 1} have changed, and its own do not identify their place"
        )

    def _is_told(self, hunk: Hunk, pairs: dict[int, int], shift: int) -> bool:
        """Return whether a line of the hunk that moved with its change identifies the place."""
        kept = (i for i in context_lines(hunk) if pairs.get(i) == i + shift)
        return any(is_telling(self._old.lines[i]) for i in kept)

    def _import_place(self, hunk: Hunk, change: PlacedChange, pairs: dict[int, int]) -> int | None:
        """Return the index for imports, whose order is free: next to an import in the hunk's context."""
        if change.inside or not all(map(_is_import, change.added)):
            return None
        there = next((line for line in change.added if line in self._new.lines), None)
        if there is not None:
            raise Unmergeable(f"the new version has `{there.decode('utf-8', 'replace').strip()[:100]}`")
        for i in reversed(context_lines(hunk)):
            if i < change.at and i in pairs and _is_import(self._old.lines[i]):
                return pairs[i] + 1
        for i in context_lines(hunk):
            if i >= change.at and i in pairs and _is_import(self._old.lines[i]):
                return pairs[i]
        return None

    def _gap(self, change: PlacedChange, pairs: dict[int, int]) -> tuple[int, str]:
        """Return the index for an addition, between the lines that surrounded it, and the differences."""
        old, new = self._aligned.ranges(change.frame)
        above = new[0] - 1 if change.at == old[0] else pairs.get(change.at - 1)
        below = new[1] if change.at == old[1] else pairs.get(change.at)
        if above is not None and below == above + 1:
            return below, AROUND
        if above is not None and below is not None and self._is_beside(change, above + 1, below):
            return below, BESIDE
        if above is not None and below is None and self._follows(above):
            return above + 1, BELOW
        known = next((i for i in (above, below) if i is not None and i >= 0), None)
        where = "" if known is None else f", near line {known + 1}"
        raise Unmergeable(f"the new version has other lines where it adds some{where}")

    def _is_beside(self, change: PlacedChange, first: int, end: int) -> bool:
        """Return whether these lines of the new version are added within the change's block, without leaving it."""
        between = [line for line in self._new.lines[first:end] if line.strip()]
        if not between or end - first > _MOST_BESIDE:
            return first < end and not between
        margin = min((indent(line) for line in change.added if line.strip()), default=0)
        is_one_block = min(map(indent, between)) == indent(between[0]) == margin
        return is_one_block and not any(_LEAVES.match(line) for line in between)

    def _follows(self, index: int) -> bool:
        """Return whether a line identifies its place, and the next line is in the same block."""
        lines = self._new.lines[index : index + 2]
        return len(lines) == 2 and is_telling(lines[0]) and indent(lines[0]) == indent(lines[1])

    def _changed_text(self, change: PlacedChange, pairs: dict[int, int]) -> str:
        lost = [i for i in range(change.at, change.end) if i not in pairs]
        unended = {line.rstrip(b"\r\n") for line in self._new.lines}
        other_ends = [self._old.lines[i] for i in lost if self._old.lines[i] not in self._new.lines]
        if other_ends and all(line.rstrip(b"\r\n") in unended for line in other_ends):
            return "the new version has other line ends"
        if not lost:
            return "other lines are now between those it changes"
        number, text = lost[0] + 1, self._old.lines[lost[0]].decode("utf-8", "replace").strip()
        return f"the new version has changed what it changes: line {number} was `{text[:100]}`"


def _is_import(line: bytes) -> bool:
    """Return whether a line is a complete import at the margin."""
    return _IMPORT.fullmatch(line.rstrip(b"\r\n")) is not None
