"""Search for a change that the new version already has: its new lines are at the place, and its old ones are not."""

from __future__ import annotations

from collections.abc import Sequence

from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.block_match import BlockMatch
from npu_rl.stack.port.file_scopes import bare, is_telling
from npu_rl.stack.port.line_alignment import ScopeAlignment
from npu_rl.stack.port.placed_change import PlacedChange, first_text

_MANY_LINES = 3  # telling lines that are no coincidence, if they are where they belong


class UpstreamChanges:
    """Search for a file's changes in its new version.

    Args:
        blocks: The comparison of blocks between the two versions.
    """

    def __init__(self, aligned: ScopeAlignment, blocks: BlockMatch) -> None:
        self._aligned, self._blocks = aligned, blocks
        self._old, self._new = aligned.old, aligned.new

    def place(self, hunk: Hunk, change: PlacedChange, taken: set[int]) -> int | None:
        """Return the place where the new version has the lines that a change adds, and none that it removes.

        Args:
            taken: The lines that other changes have matched; this change's lines are added.
        """
        if change.removed and (self._grew(change.removed, change.inside, 0) or self._is_left(change)):
            return None
        above, below = self._neighbours(hunk, change)
        if not change.added:
            return self._closed_gap(change)
        if not self._grew(change.added, change.made_inside, 1):
            return None
        count = len(change.added)
        telling = sum(map(is_telling, change.added))
        first, last = self._aligned.between(change.at, change.end, change.frame)
        for place in self._new.places(change.added, change.made_inside):
            lines = set(range(place, place + count))
            if lines & taken or not self._is_same_block(change, place, first <= place <= last - count):
                continue
            is_below = above is not None and self._line(place - 1) == above
            is_above = below is not None and self._line(place + count) == below
            beside = [line for line, is_there in ((above, is_below), (below, is_above)) if line and is_there]
            is_there = first <= place <= last - count or any(self._is_alone(line, change) for line in beside)
            # Else the same lines came elsewhere in the function.
            is_told = is_there and ((telling and (is_below or is_above)) or (is_below and is_above))
            if is_told or (telling >= _MANY_LINES and (is_there or self._is_definition(change))):
                taken |= lines
                return place
        return None

    def _is_definition(self, change: PlacedChange) -> bool:
        """Return whether a change adds a class or function, whose position among others is free."""
        return any(name and name not in self._old.names for _, name in change.made)

    def _is_same_block(self, change: PlacedChange, place: int, is_between: bool) -> bool:
        """Return whether the added lines are in the same blocks at this place.

        Args:
            is_between: Whether the place is between the lines around the change: then the innermost block counts.
        """
        new, old = self._new.blocks(place + first_text(change.added)), change.blocks
        if is_between:
            new, old = new[:1], old[:1]
        if self._new.has_keys:
            return [head.text for head in new] == [head.text for head in old]
        return self._blocks.are_same(old, new, change.frame, strict=True)

    def _is_left(self, change: PlacedChange) -> bool:
        """Return whether a removed line is still there as often as before, or was moved to another existing scope."""
        texts = [bare(line) for line in change.removed if is_telling(line)]
        added = [bare(line) for line in change.added]
        return any(
            self._new.count(text, change.inside) >= self._old.count(text, change.inside) or self._moved(text)
            for text in texts
            if texts.count(text) > added.count(text)
        )

    def _is_alone(self, line: bytes, change: PlacedChange) -> bool:
        """Return whether a line identifies a place and occurs once in its function in both versions."""
        places = (self._old.places([line], change.inside), self._new.places([line], change.made_inside))
        return is_telling(line) and all(len(found) == 1 for found in places)

    def _moved(self, text: bytes) -> bool:
        """Return whether a scope of both versions gained a bare line; a new scope may be a twin, and doesn't count."""
        there = self._new.scopes_with(text) & (self._old.names | {""})
        return any(self._new.count(text, name) > self._old.count(text, name) for name in there)

    def _grew(self, lines: Sequence[bytes], inside: str, by: int) -> bool:
        """Return whether lines occur in a function at least `by` times more often than before."""
        return len(self._new.places(lines, inside)) >= len(self._old.places(lines, inside)) + by

    def _closed_gap(self, change: PlacedChange) -> int | None:
        """Return the place where the lines around the removed ones are now neighbours."""
        if not any(map(is_telling, change.removed)):
            return None
        pairs = self._aligned.pairs(change.frame)
        place = pairs.get(change.at - 1)
        return place + 1 if place is not None and pairs.get(change.end) == place + 1 else None

    def _neighbours(self, hunk: Hunk, change: PlacedChange) -> tuple[bytes | None, bytes | None]:
        """Return the lines directly above and below a change; None if blank, or not in the hunk's context."""
        lines = self._old.lines
        above = lines[change.at - 1] if change.at > hunk.old_index else None
        below = lines[change.end] if change.end < hunk.old_index + hunk.old_count else None
        return (above if above and above.strip() else None), (below if below and below.strip() else None)

    def _line(self, index: int) -> bytes | None:
        return self._new.lines[index] if 0 <= index < len(self._new.lines) else None
