"""The judgement of one hunk in the new version of its file: where it belongs, and whether it still has to be applied.

A hunk belongs into the class and function that it changes: the same lines elsewhere are another place. What can't be
told apart is a conflict, for a person decides that in a minute, and nobody sees a patch in the wrong place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npu_rl.common.printable import counted
from npu_rl.stack.hunks.hunk_headings import misplaced
from npu_rl.stack.hunks.hunk_match import find_all, fits
from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.file_scopes import FileScopes, assigned, is_telling
from npu_rl.stack.port.line_alignment import ScopeAlignment
from npu_rl.stack.port.merge_change import ChangeMerger, Unmergeable
from npu_rl.stack.port.placed_change import Edit, PlacedChange, context_lines, edited_text, placed_changes
from npu_rl.stack.port.port_judgement import HunkFate

_MOST_OF = 0.5  # of the lines added, came already: too many for a hunk whose old lines stand
_MANY_LINES = 3  # telling lines that are no coincidence, wherever they stand in their function


@dataclass(frozen=True)
class HunkJudgement:
    """The fate of a hunk.

    Attributes:
        index: The lines above its place in the new version; None for no place.
        edits: What it changes there.
    """

    state: HunkFate
    index: int | None
    inside: str
    why: str = ""
    edits: tuple[Edit, ...] = ()


class HunkJudge:
    """Judges the hunks of one file.

    Args:
        old: The file of the old version, which each hunk fits exactly.
        new: The file of the new version.
    """

    def __init__(self, old: FileScopes, new: FileScopes) -> None:
        self._old, self._new = old, new
        self._aligned = ScopeAlignment(old, new)
        self._merger = ChangeMerger(self._aligned)

    def judge(self, hunk: Hunk) -> HunkJudgement:
        """Return what becomes of a hunk."""
        changes = list(placed_changes(self._old, hunk))
        inside = changes[0].inside
        doubt = next((why for change in changes if (why := self._why_another_scope(change.inside))), None)
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
            there = self._new.name_at(standing[0] + changes[0].at - hunk.old_index)
            return HunkJudgement(
                "conflict",
                standing[0],
                inside,
                f"its lines stand at line {standing[0] + 1}, {_place_name(there)}; it is for {_place_name(inside)}",
            )
        return HunkJudgement("target gone", None, inside, f"{gone} is no longer in the file")

    def scope_of(self, hunk: Hunk) -> str:
        """Return the class and function, or the keys, around what a hunk changes in the old version."""
        return next(placed_changes(self._old, hunk)).inside

    def _is_same_place(self, hunk: Hunk, changes: Sequence[PlacedChange], index: int) -> bool:
        """Return whether the hunk's change is inside the same scope at this place."""
        shift = index - hunk.old_index
        edits = [Edit(c.at + shift, c.end + shift, c.added) for c in changes]
        return self._first_elsewhere(changes, edits) is None

    def _first_elsewhere(self, changes: Sequence[PlacedChange], edits: Sequence[Edit]) -> str | None:
        """Return what the first change is inside of that is inside of something else now; None if none is."""
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

    def _why_another_scope(self, name: str) -> str | None:
        """Return why the scope of a name may be another one now; None if it is the same, or gone."""
        before, now = self._old.times(name), self._new.times(name)
        if now and now != before:
            return f"{name} is there {counted(now, 'time')}, and was {counted(before, 'time')}"
        if now and "[" in name and self._old.head(name) != self._new.head(name):
            return f"{name} is another item of its list now, or begins otherwise"
        return None

    def _is_gone(self, name: str) -> bool:
        return bool(name and self._new.scopes is not None and name not in self._new.names)

    # -- its old lines stand there -----------------------------------------------------------------

    def _verbatim(self, hunk: Hunk, changes: Sequence[PlacedChange], own: list[int]) -> HunkJudgement:
        inside = changes[0].inside
        twins = self._twins(hunk, inside)
        index = own[0] if len(own) == 1 else self._paired(hunk, changes, own)
        if len(twins) > 1:
            index = own[twins.index(hunk.old_index)] if len(own) == len(twins) else None
        if index is None:
            lines = ", ".join(str(i + 1) for i in own)
            many = f"{counted(len(own), 'place')} of {_place_name(inside)}, and stood at {len(twins)}"
            why = f"its lines stand at {many}: {lines}"
            return HunkJudgement("conflict", own[0], inside, why)
        reason = self._why_not_there(hunk, changes, index)
        if reason is not None:
            return HunkJudgement("conflict", index, inside, reason)
        edit = Edit(index, index + hunk.old_count, tuple(hunk.new_lines))
        if index == hunk.old_index:
            return HunkJudgement("exact", index, inside, "", (edit,))
        why = f"{index - hunk.old_index:+d} lines"
        return HunkJudgement("moved", index, inside, why, (edit,))

    def _twins(self, hunk: Hunk, inside: str) -> list[int]:
        """Return the places of the hunk's old lines in its scope of the old version, its own included."""
        offset = next(hunk.changes()).at
        here = self._old.name_at(hunk.old_index + offset)
        found = [i for i in find_all(self._old.lines, hunk.old_lines) if _fits(self._old, hunk, i)]
        return [i for i in found if i == hunk.old_index or self._old.name_at(i + offset) in (inside, here)]

    def _paired(self, hunk: Hunk, changes: Sequence[PlacedChange], own: list[int]) -> int | None:
        """Return which of several places of one function is the hunk's; None if it is ambiguous."""
        pairs = self._aligned.pairs(changes[0].inside)
        paired = {pairs[i] - (i - hunk.old_index) for i in context_lines(hunk) if i in pairs}
        found = [i for i in own if i in paired]
        return found[0] if len(found) == 1 else None

    def _why_not_there(self, hunk: Hunk, changes: Sequence[PlacedChange], index: int) -> str | None:
        """Return why the hunk should not be applied at the place of its old lines; None if it should."""
        if self._new.scopes is None:
            elsewhere = misplaced(self._new.content, hunk, index + 1, self._new.path)
            if elsewhere is not None:
                return elsewhere
        return self._standing_again(changes) or self._came_already(changes, _MOST_OF)

    def _standing_again(self, changes: Sequence[PlacedChange]) -> str | None:
        """Return that lines which the hunk only adds came with the new version; None if they did not."""
        for change in changes:
            if not change.removed and any(map(is_telling, change.added)):
                places = self._new.places(change.added, change.inside)
                if len(places) > len(self._old.places(change.added, change.inside)):
                    return f"what it adds stands at line {places[-1] + 1} already, and was not there before"
        return None

    def _came_already(self, changes: Sequence[PlacedChange], share: float) -> str | None:
        """Return that a class or function, or more than a share of the lines added, came with the new version; or None.

        A line counts where it stands in the same class and function, whatever its indent: upstream may have made the
        same change in another form, which would then be there twice.
        """
        made = list(dict.fromkeys(one for change in changes for one in change.made))
        for _, name in made:
            if name in self._new.names and name not in self._old.names:
                return f"the new version has {name} of its own"
        added = [(text, name) for text, name in made if is_telling(text)]
        came = [text for text, name in added if self._new.count(text, name) > self._old.count(text, name)]
        if len(came) > share * len(added):
            return f"the new version has a part of what it adds: `{came[0].decode('utf-8', 'replace')[:100]}`"
        return None

    def _assigned(self, changes: Sequence[PlacedChange]) -> str | None:
        """Return that the new version began to assign what the hunk assigns, too; None if it did not."""
        for text, name in (one for change in changes for one in change.made):
            target = assigned(text)
            if target and self._new.count(target, name) > self._old.count(target, name):
                return f"the new version assigns `{target.decode('utf-8', 'replace')}` there, too"
        return None

    # -- its new lines stand there -----------------------------------------------------------------

    def _upstream(self, hunk: Hunk, changes: Sequence[PlacedChange]) -> HunkJudgement | None:
        """Return that the new version has it, or a part of it; None if it has nothing."""
        if len(self._twins(hunk, changes[0].inside)) > 1:
            return None
        found = [self._upstream_place(hunk, change) for change in changes]
        places = [place for place in found if place is not None]
        if not places:
            return None
        inside, first = changes[0].inside, min(places)
        if len(places) == len(changes):
            index = max(0, first - (changes[0].at - hunk.old_index))
            why = f"its new lines stand at line {first + 1}"
            return HunkJudgement("already upstream", index, inside, why)
        why = (
            f"{len(places)} of its {len(changes)} changes stand there already, the first at line {first + 1}"
        )
        return HunkJudgement("conflict", first, inside, why)

    def _upstream_place(self, hunk: Hunk, change: PlacedChange) -> int | None:
        """Return where the new version has what a change makes, and nothing of what it removes."""
        if change.removed and self._grew(change.removed, change.inside, 0):
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
            if telling >= _MANY_LINES:
                return place
            is_below = above is not None and self._line(place - 1) == above
            is_above = below is not None and self._line(place + count) == below
            beside = [line for line, is_there in ((above, is_below), (below, is_above)) if line and is_there]
            is_there = first <= place <= last - count or any(self._is_alone(line, change) for line in beside)
            # Else the same lines came elsewhere in the function.
            if is_there and ((telling and (is_below or is_above)) or (is_below and is_above)):
                return place
        return None

    def _is_alone(self, line: bytes, change: PlacedChange) -> bool:
        """Return whether a line identifies a place, and occurs once in its function, in both versions."""
        places = (self._old.places([line], change.inside), self._new.places([line], change.made_inside))
        return is_telling(line) and all(len(found) == 1 for found in places)

    def _grew(self, lines: Sequence[bytes], inside: str, by: int) -> bool:
        """Return whether a function has lines at least as often as before, and `by` times more."""
        return len(self._new.places(lines, inside)) >= len(self._old.places(lines, inside)) + by

    def _closed_gap(self, change: PlacedChange) -> int | None:
        """Return the place where the lines around removed ones, which identify it, are neighbours now."""
        if not any(map(is_telling, change.removed)):
            return None
        pairs = self._aligned.pairs(change.frame)
        place = pairs.get(change.at - 1)
        return place + 1 if place is not None and pairs.get(change.end) == place + 1 else None

    def _neighbours(self, hunk: Hunk, change: PlacedChange) -> tuple[bytes | None, bytes | None]:
        """Return the lines above and below a change that are not blank, if the hunk has them as context."""
        lines = self._old.lines
        above = lines[change.at - 1] if change.at > hunk.old_index else None
        below = lines[change.end] if change.end < hunk.old_index + hunk.old_count else None
        return (above if above and above.strip() else None), (below if below and below.strip() else None)

    def _line(self, index: int) -> bytes | None:
        return self._new.lines[index] if 0 <= index < len(self._new.lines) else None

    # -- what it changes stands there, among other lines -------------------------------------------

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
        if elsewhere is not None:
            why = f"what it changes is now in {_place_name(elsewhere)}; it is for {_place_name(inside)}"
            return HunkJudgement("conflict", edits[0].start, inside, why)
        if edited_text(self._new.lines, edits) == self._new.content:
            return HunkJudgement("conflict", edits[0].start, inside, "the file would be the same with it")
        again = self._standing_again(changes) or self._came_already(changes, 0) or self._assigned(changes)
        if again is not None:
            return HunkJudgement("conflict", edits[0].start, inside, again)
        if not self._compiles(edits):
            return HunkJudgement("conflict", edits[0].start, inside, "the file would not compile with it")
        index = max(0, edits[0].start - (changes[0].at - hunk.old_index))
        return HunkJudgement("merged", index, inside, max((one.why for one in merged), key=len), tuple(edits))

    def _compiles(self, edits: Sequence[Edit]) -> bool:
        """Return whether a file is still valid with edits: an addition may be inside of a bracket now."""
        return self._new.scopes is None or self._with(edits).scopes is not None

    def _with(self, edits: Sequence[Edit]) -> FileScopes:
        return FileScopes(edited_text(self._new.lines, edits), self._new.path)


def _fits(file: FileScopes, hunk: Hunk, index: int) -> bool:
    """Return whether a hunk's old lines are at an index; a hunk without a line above the change belongs at the top."""
    is_at_top = hunk.old_index == 0 and hunk.lines[0].tag != " "
    return fits(file.lines, hunk, index) and (index == 0 or not is_at_top)


def _place_name(name: str) -> str:
    return name or "no class or function"
