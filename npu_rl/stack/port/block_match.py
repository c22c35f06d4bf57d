"""Comparison of the blocks around a place in the new version with the blocks around a change in the old one."""

from __future__ import annotations

from collections.abc import Sequence

from npu_rl.stack.port.enclosing_blocks import OPENS, BlockHead
from npu_rl.stack.port.line_alignment import ScopeAlignment


class BlockMatch:
    """Comparison of blocks between two versions, where a condition or an argument may have changed."""

    def __init__(self, aligned: ScopeAlignment) -> None:
        self._aligned = aligned
        self._lines = [[line.strip() for line in file.lines] for file in (aligned.old, aligned.new)]

    def are_same(
        self, old: Sequence[BlockHead], new: Sequence[BlockHead], frame: str, *, strict: bool = False
    ) -> bool:
        """Return whether the blocks around a place are the same as those around a change.

        Args:
            old: The heads around the change; a line that the patch adds has the index -1.
            new: The heads around the place, with indexes of the new version, and -1 likewise.
            frame: The scope of the change, by which both versions are aligned.
            strict: Whether a changed head means another block; set if the same lines are in several blocks.
        """
        return len(old) == len(new) and all(
            self._is_same(one, other, frame, strict) for one, other in zip(old, new, strict=True)
        )

    def _is_same(self, old: BlockHead, new: BlockHead, frame: str, strict: bool) -> bool:
        if min(old.line, new.line) < 0:
            return old.line == new.line and old.text == new.text
        if old.is_scope and new.is_scope:
            return old.text == new.text  # the scopes of both are compared by their whole names
        if old.text != new.text and (strict or old.is_named or new.is_named):
            return False
        pairs = self._aligned.pairs(frame)
        if old.whole != new.whole:
            return self._is_changed_head(old, new, frame)
        if old.text != new.text and old.whole.endswith(OPENS):
            return False  # another call of the same name
        if old.text == new.text and all(lines.count(old.whole) == 1 for lines in self._lines):
            return True
        return pairs.get(old.line) == new.line

    def _is_changed_head(self, old: BlockHead, new: BlockHead, frame: str) -> bool:
        """Return whether the new head is at the old head's place, and neither version has both."""
        if new.whole in self._lines[0] or old.whole in self._lines[1]:
            return False
        first, end = self._aligned.between(old.line, old.line + 1, frame)
        return first <= new.line < end
