"""Alignment of a file's lines with those of a later version."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from npu_rl.stack.port.file_scopes import FileScopes

_MOST = 5_000  # lines between the equal ends that are compared, on each side


def align_lines(old: Sequence[bytes], new: Sequence[bytes]) -> dict[int, int]:
    """Return a map from the index of each line in `old` that is still there to its index in `new`, in order.

    Common lines at the beginning and the end are paired first. If more than 5,000 lines remain, no others are paired.
    """
    shortest = min(len(old), len(new))
    head = 0
    while head < shortest and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    pairs = {i: i for i in range(head)}
    pairs.update({len(old) - 1 - i: len(new) - 1 - i for i in range(tail)})
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(len(middle_old), len(middle_new)) <= _MOST:
        matcher = SequenceMatcher(None, middle_old, middle_new, autojunk=False)
        for block in matcher.get_matching_blocks():
            pairs.update({head + block.a + i: head + block.b + i for i in range(block.size)})
    return pairs


class ScopeAlignment:
    """Two versions of a file, aligned scope by scope: a whole function may have moved."""

    def __init__(self, old: FileScopes, new: FileScopes) -> None:
        self.old, self.new = old, new
        self._pairs: dict[str, dict[int, int]] = {}

    def pairs(self, name: str) -> dict[int, int]:
        """Return a map from the index of each line of a scope that is still there to its index in the new version."""
        if name not in self._pairs:
            old, new = self.ranges(name)
            found = align_lines(self.old.lines[slice(*old)], self.new.lines[slice(*new)])
            self._pairs[name] = {old[0] + one: new[0] + other for one, other in found.items()}
        return self._pairs[name]

    def ranges(self, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the range of a scope in both versions; the whole files unless each has it exactly once."""
        old, new = self.old.range_of(name), self.new.range_of(name)
        if old is None or new is None:
            return (0, len(self.old.lines)), (0, len(self.new.lines))
        return old, new

    def between(self, at: int, end: int, name: str) -> tuple[int, int]:
        """Return the range in the new version between the aligned lines above and below a range of the old version."""
        pairs, (first, last) = self.pairs(name), self.ranges(name)[1]
        above = max((new for old, new in pairs.items() if old < at), default=first - 1)
        below = min((new for old, new in pairs.items() if old >= end), default=last)
        return above + 1, below

    def nearest(self, first: int, lines: range, name: str) -> int:
        """Return the line of the new version that is nearest to a hunk's first line."""
        pairs = self.pairs(name)
        known = [(i, new) for i, new in pairs.items() if i in lines]
        known = known or [max(((i, new) for i, new in pairs.items() if i < first), default=(first, -1))]
        old, new = known[0]
        if new < 0:
            return self.ranges(name)[1][0]
        return min(max(0, new - (old - first)), len(self.new.lines))
