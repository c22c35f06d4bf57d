"""Reasons to think that the new version has a change, or a part of it, at another place or in another form.

Such a change would be there twice without anybody noticing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cached_property

from npu_rl.stack.port.bound_names import bound_names
from npu_rl.stack.port.file_scopes import PYTHON, FileScopes, assigned, bare, is_telling
from npu_rl.stack.port.placed_change import Edit, PlacedChange, edited_text

_CALL = re.compile(r"(?:await )?[\w.]+\(")
_BESIDE = (2, 6)  # lines above and below a place
_LIKE = 0.9  # share of letters in common, by which a line is taken for another form of one
_LIKE_CALL = 0.75  # the same of two calls of one function
_LONGEST = 200  # letters that are compared


class RepeatedChanges:
    """Search for changes that the new version of a file already has. Each method returns a reason, or None."""

    def __init__(self, old: FileScopes, new: FileScopes) -> None:
        self._old, self._new = old, new

    def reason(self, changes: Sequence[PlacedChange], edits: Sequence[Edit]) -> str | None:
        """Return the first reason not to make a hunk's changes in the new version by these edits."""
        return (
            self.standing_again(changes)
            or self.came_already(changes, 0)
            or self.assigned_there(changes)
            or self.beside(changes, edits)
        )

    def standing_again(self, changes: Sequence[PlacedChange]) -> str | None:
        """Return a reason if the new version brought the lines of a change that only adds; else None."""
        for change in changes:
            if not change.removed and any(map(is_telling, change.added)):
                places = self._new.places(change.added, change.inside)
                if len(places) > len(self._old.places(change.added, change.inside)):
                    return f"the new version has the lines that it adds, at line {places[-1] + 1}"
        return None

    def came_already(self, changes: Sequence[PlacedChange], share: float) -> str | None:
        """Return a reason if the new version brought a class, a function, or more than a share of the added lines.

        A line counts if it is in the same class and function, at any indentation: upstream may have made the same
        change in another form, which would then be there twice.
        """
        made = list(dict.fromkeys(one for change in changes for one in change.made))
        for _, name in made:
            if name in self._new.names and name not in self._old.names:
                return f"the new version has {name} of its own"
        bound = self._bound_by(changes) & self._bound_upstream
        if bound:
            return f"the new version has {min(bound)} of its own"
        added = [(text, name) for text, name in made if is_telling(text)]
        came = [text for text, name in added if self._new.count(text, name) > self._old.count(text, name)]
        if len(came) > share * len(added):
            return f"the new version has a part of what it adds: `{came[0].decode('utf-8', 'replace')[:100]}`"
        return None

    def _bound_by(self, changes: Sequence[PlacedChange]) -> frozenset[str]:
        """Return the names that the hunk newly binds, except by lines that the new version has as well."""
        if not self._bound_upstream:
            return frozenset()
        edits = [Edit(change.at, change.end, change.added) for change in changes]
        bound = bound_names(edited_text(self._old.lines, edits)) - bound_names(self._old.content)
        same = {line for change in changes for line in change.added if line in self._new.lines}
        return bound.difference(*(bound_names(line) for line in same))

    @cached_property
    def _bound_upstream(self) -> frozenset[str]:
        """The names that only the new version binds, including by imports."""
        if not self._new.path.endswith(PYTHON):
            return frozenset()
        return bound_names(self._new.content) - bound_names(self._old.content)

    def assigned_there(self, changes: Sequence[PlacedChange]) -> str | None:
        """Return a reason if the new version also assigns, unlike the old one, a target that the hunk assigns."""
        for text, name in (one for change in changes for one in change.made):
            target = assigned(text)
            if target and self._new.count(target, name) > self._old.count(target, name):
                return f"the new version assigns `{target.decode('utf-8', 'replace')}` there, too"
        return None

    def beside(self, changes: Sequence[PlacedChange], edits: Sequence[Edit]) -> str | None:
        """Return a reason if the new version brought similar lines near the place of an addition."""
        for change, edit in zip(changes, edits, strict=True):
            made = {bare(line) for line in change.added if is_telling(line)}
            for span in _BESIDE:
                known = {bare(line) for line in self._old.lines[max(0, change.at - span) : change.end + span]}
                first = max(0, edit.start - span)
                for i, line in enumerate(self._new.lines[first : edit.end + span], first):
                    is_kept = bare(line) in known or edit.start <= i < edit.end
                    if not is_kept and any(_is_like(bare(line), one) for one in made - known):
                        return f"the new version has a line like one that it adds beside its place, at line {i + 1}"
            if not change.removed and not any(map(is_telling, change.added)):
                if any(map(bytes.strip, change.added)):
                    return "its added lines don't show whether the new version has it"
                if any(not line.strip() for line in self._new.lines[max(0, edit.start - 1) : edit.start + 1]):
                    return "the new version has a blank line at the place of its own"
        return None


def _is_like(one: bytes, other: bytes) -> bool:
    """Return whether two lines differ by a few letters at most."""
    if one == other:
        return True
    texts = [text.decode("utf-8", "replace")[:_LONGEST] for text in (one, other)]
    calls = [_CALL.match(text) for text in texts]
    is_one_call = calls[0] is not None and calls[1] is not None and calls[0][0] == calls[1][0]
    least = _LIKE_CALL if is_one_call else _LIKE
    return SequenceMatcher(None, texts[0], texts[1], autojunk=False).ratio() >= least
