"""The judgement of one hunk in the new version of its file: its place, and whether it still needs to be applied.

A hunk belongs in the class and function that it changes: the same lines elsewhere are another place. An ambiguous
place is a conflict: a person decides it in a minute, but would not notice a patch in the wrong place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npu_rl.common.printable import counted
from npu_rl.stack.hunks.hunk_headings import misplaced
from npu_rl.stack.hunks.hunk_match import find_all, fits
from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.block_match import BlockMatch
from npu_rl.stack.port.enclosing_blocks import BlockHead
from npu_rl.stack.port.file_scopes import FileScopes, bare
from npu_rl.stack.port.line_alignment import ScopeAlignment
from npu_rl.stack.port.merge_change import ChangeMerger, Unmergeable
from npu_rl.stack.port.placed_change import (
    Edit,
    PlacedChange,
    context_lines,
    edited_text,
    first_text,
    placed_changes,
    unedited_heads,
)
from npu_rl.stack.port.port_judgement import HunkFate
from npu_rl.stack.port.repeated_change import RepeatedChanges
from npu_rl.stack.port.upstream_change import UpstreamChanges

_MOST_OF = 0.5  # of the lines added, came already: too many for a hunk whose old lines stand


@dataclass(frozen=True)
class HunkJudgement:
    """The outcome for one hunk.

    Attributes:
        index: The number of lines above its place in the new version; None if it has no place.
        edits: The edits that apply it there.
    """

    state: HunkFate
    index: int | None
    inside: str
    why: str = ""
    edits: tuple[Edit, ...] = ()


class HunkJudge:
    """The judge of one file's hunks.

    Args:
        old: The file of the old version, which each hunk fits exactly.
        new: The file of the new version.
    """

    def __init__(self, old: FileScopes, new: FileScopes) -> None:
        self._old, self._new = old, new
        self._aligned = ScopeAlignment(old, new)
        self._merger = ChangeMerger(self._aligned)
        self._repeated = RepeatedChanges(old, new)
        self._blocks = BlockMatch(self._aligned)
        self._upstream_changes = UpstreamChanges(self._aligned, self._blocks)
        self._upstream_lines: set[int] = set()  # of the new version: each stands for one change only

    def judge(self, hunk: Hunk) -> HunkJudgement:
        """Return the judgement of a hunk."""
        changes = list(placed_changes(self._old, hunk))
        inside = changes[0].inside
        if self._new.content == self._old.content:  # an empty file has no lines to search for
            edit = Edit(hunk.old_index, hunk.old_index + hunk.old_count, tuple(hunk.new_lines))
            return HunkJudgement("exact", hunk.old_index, inside, "", (edit,))
        doubt = next((why for change in changes if (why := self._why_another_scope(change))), None)
        if doubt is not None:
            nearest = self._aligned.nearest(hunk.old_index, context_lines(hunk), inside)
            return HunkJudgement("conflict", nearest, inside, doubt)
        standing = [i for i in find_all(self._new.lines, hunk.old_lines) if _fits(self._new, hunk, i)]
        own = [i for i in standing if self._is_same_place(hunk, changes, i)]
        if own:
            return self._verbatim(hunk, changes, own)
        gone = next((c.inside for c in changes if self._is_gone(c.inside)), None)
        found = self._upstream(hunk, changes)
        if found is None and gone is None:
            found = self._merged(hunk, changes)
        if found is not None and (found.state != "conflict" or not standing):
            return found
        if standing:
            why = self._why_elsewhere(standing[0] + changes[0].at - hunk.old_index, changes[0])
            return HunkJudgement(
                "conflict", standing[0], inside, f"its lines are at line {standing[0] + 1}, {why}"
            )
        return HunkJudgement("target gone", None, inside, f"{gone} is no longer in the file")

    def scope_of(self, hunk: Hunk) -> str:
        """Return the class and function, or the keys, around a hunk's first change in the old version."""
        return next(placed_changes(self._old, hunk)).inside

    def _is_same_place(
        self, hunk: Hunk, changes: Sequence[PlacedChange], index: int, *, strict: bool = False
    ) -> bool:
        """Return whether the hunk's change is inside the same scope and the same blocks at this place."""
        shift = index - hunk.old_index
        for change in changes:
            if change.removed and not self._new.has_keys:
                old, new = self._old.blocks(change.at), self._new.blocks(change.at + shift)
                if not self._blocks.are_same(old, new, change.frame, strict=strict):
                    return False
        edits = [Edit(c.at + shift, c.end + shift, c.added) for c in changes]
        if self._first_elsewhere(changes, edits) is not None:
            return False
        return self._first_other_block(changes, edits, strict=strict) is None

    def _first_elsewhere(self, changes: Sequence[PlacedChange], edits: Sequence[Edit]) -> str | None:
        """Return the new scope of the first change that is no longer in its old scope; None if all are."""
        added = self._new if all(c.removed for c in changes) else self._with(edits)
        shift = 0
        for change, edit in zip(changes, edits, strict=True):
            if change.removed:
                around = self._new.inside(edit.start, edit.end)
            else:
                around = added.inside(edit.start + shift, edit.start + shift + len(edit.lines))
            shift += len(edit.lines) - (edit.end - edit.start)
            if around != change.inside:
                return around
        return None

    def _why_elsewhere(self, index: int, change: PlacedChange) -> str:
        """Return the scope or block of a line in the new version, and the one that the change is for."""
        there = self._new.name_at(index)
        if there != change.inside:
            return f"{_place_name(there)}; it is for {_place_name(change.inside)}"
        here, own = self._new.blocks(index), change.blocks
        if _block_name(here) == _block_name(
            own
        ):  # another function of this name, or another block with this head
            here, own = (tuple(one._replace(text=one.whole) for one in heads) for heads in (here, own))
        while here and own and here[-1].text == own[-1].text:
            here, own = here[:-1], own[:-1]
        return f"in {_block_name(here)}; it is for {_block_name(own)}"

    def _first_other_block(
        self, changes: Sequence[PlacedChange], edits: Sequence[Edit], *, strict: bool = False
    ) -> str | None:
        """Return the block around the first edit whose change was in another block; None if all blocks agree."""
        if self._new.has_keys:
            return None
        merged, shift = self._with(edits), 0
        for change, edit in zip(changes, edits, strict=True):
            if edit.lines:
                heads = merged.blocks(edit.start + shift + first_text(edit.lines))
                around = unedited_heads(heads, edits)
                if not self._blocks.are_same(change.blocks, around, change.frame, strict=strict):
                    return _block_name(around)
            shift += len(edit.lines) - (edit.end - edit.start)
        return None

    def _why_another_scope(self, change: PlacedChange) -> str | None:
        """Return why the scope of a change may be a different one now; None if it is the same, or gone."""
        name = change.inside
        before, now = self._old.times(name), self._new.times(name)
        if now and now != before:
            return f"{name} is there {counted(now, 'time')}, and was {counted(before, 'time')}"
        if now and self._is_another_item(change):
            return f"{name} is another item of its list now, or begins otherwise"
        return None

    def _is_another_item(self, change: PlacedChange) -> bool:
        """Return whether the new version may have a different list item there.

        Items are distinguished by their own lines, some of which the change may remove.
        """
        removed = {bare(line) for line in change.removed}
        for item in self._old.items_around(change.inside):
            if self._old.head(item) != self._new.head(item):
                return True
            old, new = self._old.items_beside(item), self._new.items_beside(item)
            if self._old.own_lines(item, old) - removed - self._new.own_lines(item, []):
                return len(old) + len(new) > 0
        return False

    def _is_gone(self, name: str) -> bool:
        return bool(name and self._new.scopes is not None and name not in self._new.names)

    # -- its old lines are there -------------------------------------------------------------------

    def _verbatim(self, hunk: Hunk, changes: Sequence[PlacedChange], own: list[int]) -> HunkJudgement:
        inside = changes[0].inside
        twins = self._twins(hunk, inside)
        index = own[0] if len(own) == len(twins) == 1 else self._own_of_twins(hunk, changes, own, twins)
        if index is None:
            lines = ", ".join(str(i + 1) for i in own)
            many = f"{counted(len(own), 'place')} of {_place_name(inside)}, and were at {len(twins)}"
            why = f"its lines are at {many}: {lines}"
            return HunkJudgement("conflict", own[0], inside, why)
        reason = self._why_not_there(hunk, changes, index)
        if reason is not None:
            return HunkJudgement("conflict", index, inside, reason)
        edit = Edit(index, index + hunk.old_count, tuple(hunk.new_lines))
        if index == hunk.old_index:
            return HunkJudgement("exact", index, inside, "", (edit,))
        why = f"{index - hunk.old_index:+d} lines"
        return HunkJudgement("moved", index, inside, why, (edit,))

    def _own_of_twins(
        self, hunk: Hunk, changes: Sequence[PlacedChange], own: list[int], twins: list[int]
    ) -> int | None:
        """Return the place of a hunk whose lines occur at several places in either version; None if it is ambiguous.

        Places are distinguished by their blocks, and within one block by order, unless the context contradicts it.
        """
        own = [i for i in own if self._is_same_place(hunk, changes, i, strict=True)]
        offset = changes[0].at - hunk.old_index
        around = self._old.blocks(changes[0].at)
        twins = [i for i in twins if self._old.blocks(i + offset) == around]
        paired = self._paired(hunk, changes, own)
        if len(twins) == 1:
            return own[0] if len(own) == 1 else paired
        if len(own) != len(twins):
            return None
        ordered = own[twins.index(hunk.old_index)]
        return ordered if paired in (None, ordered) else None

    def _twins(self, hunk: Hunk, inside: str) -> list[int]:
        """Return all places of the hunk's old lines in its scope of the old version, including its own place."""
        offset = next(hunk.changes()).at
        here = self._old.name_at(hunk.old_index + offset)
        found = [i for i in find_all(self._old.lines, hunk.old_lines) if _fits(self._old, hunk, i)]
        return [i for i in found if i == hunk.old_index or self._old.name_at(i + offset) in (inside, here)]

    def _paired(self, hunk: Hunk, changes: Sequence[PlacedChange], own: list[int]) -> int | None:
        """Return the hunk's place among several in one function; None if it is ambiguous."""
        pairs = self._aligned.pairs(changes[0].inside)
        paired = {pairs[i] - (i - hunk.old_index) for i in context_lines(hunk) if i in pairs}
        found = [i for i in own if i in paired]
        return found[0] if len(found) == 1 else None

    def _why_not_there(self, hunk: Hunk, changes: Sequence[PlacedChange], index: int) -> str | None:
        """Return why the hunk must not be applied at the place of its old lines; None if it may."""
        if self._new.scopes is None:
            elsewhere = misplaced(self._new.content, hunk, index + 1, self._new.path)
            if elsewhere is not None:
                return elsewhere
        return self._repeated.standing_again(changes) or self._repeated.came_already(changes, _MOST_OF)

    # -- its new lines are there -------------------------------------------------------------------

    def _upstream(self, hunk: Hunk, changes: Sequence[PlacedChange]) -> HunkJudgement | None:
        """Return the judgement of a hunk that the new version has wholly or in part, or None."""
        if len(self._twins(hunk, changes[0].inside)) > 1:
            return None
        taken = set(self._upstream_lines)
        found = [self._upstream_changes.place(hunk, change, taken) for change in changes]
        places = [place for place in found if place is not None]
        if not places:
            return None
        inside, first = changes[0].inside, min(places)
        if len(places) == len(changes):
            self._upstream_lines = taken
            index = max(0, first - (changes[0].at - hunk.old_index))
            why = f"its new lines are at line {first + 1}"
            return HunkJudgement("already upstream", index, inside, why)
        why = f"{len(places)} of its {len(changes)} changes are there already, the first at line {first + 1}"
        return HunkJudgement("conflict", first, inside, why)

    # -- what it changes is there, among other lines -----------------------------------------------

    def _merged(self, hunk: Hunk, changes: Sequence[PlacedChange]) -> HunkJudgement:
        inside = changes[0].inside
        try:
            merged = [self._merger.merge(hunk, change) for change in changes]
        except Unmergeable as reason:
            nearest = self._aligned.nearest(hunk.old_index, context_lines(hunk), inside)
            return HunkJudgement("conflict", nearest, inside, str(reason))
        edits = [one.edit for one in merged]
        if any(edits[i].end > edits[i + 1].start for i in range(len(edits) - 1)):
            return HunkJudgement("conflict", edits[0].start, inside, "its changes are in another order there")
        elsewhere = self._first_elsewhere(changes, edits)
        if elsewhere is None:
            elsewhere = self._first_other_block(changes, edits)
        if elsewhere is not None:
            why = f"the lines it changes are now in {_place_name(elsewhere)}; it is for {_place_name(inside)}"
            return HunkJudgement("conflict", edits[0].start, inside, why)
        if edited_text(self._new.lines, edits) == self._new.content:
            return HunkJudgement("conflict", edits[0].start, inside, "the file would be the same with it")
        again = self._repeated.reason(changes, edits)
        if again is not None:
            return HunkJudgement("conflict", edits[0].start, inside, again)
        if not self._compiles(edits):
            return HunkJudgement("conflict", edits[0].start, inside, "the file would not compile with it")
        index = max(0, edits[0].start - (changes[0].at - hunk.old_index))
        return HunkJudgement("merged", index, inside, max((one.why for one in merged), key=len), tuple(edits))

    def _compiles(self, edits: Sequence[Edit]) -> bool:
        """Return whether the file is still valid with edits: an addition may now be inside a bracket."""
        if self._new.scopes is None:
            return True
        merged = self._with(edits)
        return merged.scopes is not None and merged.faults <= self._new.faults

    def _with(self, edits: Sequence[Edit]) -> FileScopes:
        return FileScopes(edited_text(self._new.lines, edits), self._new.path)


def _fits(file: FileScopes, hunk: Hunk, index: int) -> bool:
    """Return whether a hunk's old lines are at an index; a hunk without leading context at line 1 fits only there."""
    is_at_top = hunk.old_index == 0 and hunk.lines[0].tag != " "
    return fits(file.lines, hunk, index) and (index == 0 or not is_at_top)


def _block_name(blocks: Sequence[BlockHead]) -> str:
    return ", in ".join(f"`{head.text.decode('utf-8', 'replace')}`" for head in blocks) or "no block"


def _place_name(name: str) -> str:
    return name or "no class or function"
