"""Which line of a text is which line of a later one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

_MOST = 5_000  # lines between the equal ends that are compared, on each side


def align_lines(old: Sequence[bytes], new: Sequence[bytes]) -> dict[int, int]:
    """Return the index in `new` of each line of `old` that is still there, in order; others are left out.

    Lines that both have at their beginning and end are paired first. Where more than 5,000 lines are left, only those.
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
