"""Porting of one patch: each hunk is judged in the new version, which yields the resulting files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from npu_rl.stack.hunks.hunk_match import apply_exact, find_all
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, Patch
from npu_rl.stack.port.file_scopes import FileScopes
from npu_rl.stack.port.judge_hunk import HunkJudge, HunkJudgement
from npu_rl.stack.port.likely_places import PlaceSearch
from npu_rl.stack.port.placed_change import Edit, edited_text, placed_changes
from npu_rl.stack.port.port_judgement import (
    History,
    HunkFate,
    LikelyPlace,
    MarkerNames,
    NewVersion,
    PortedFile,
    PortedHunk,
    PortedPatch,
)

_HEAD = 6  # lines by which a class or function is told from its twins


def port_patch(
    patch: Patch,
    before: Callable[[str], bytes | None],
    version: NewVersion,
    history: History | None,
    names: MarkerNames,
) -> PortedPatch:
    """Judge a patch in a new version.

    Args:
        before: Returns a file of the old version as the patches before this one leave it. Each hunk fits it exactly.
        version: The new version, as the previously ported patches leave it.
        history: The commits between both versions; None to leave commits unnamed.
        names: The names on the conflict markers.
    """
    search = PlaceSearch(version)
    files = [_FilePort(file, before(file.path), version, history, names, search) for file in patch.files]
    return PortedPatch(patch.name, tuple(file.ported() for file in files))


class _FilePort:
    def __init__(
        self,
        patch: FilePatch,
        before: bytes | None,
        version: NewVersion,
        history: History | None,
        names: MarkerNames,
        search: PlaceSearch,
    ) -> None:
        self._patch, self._path = patch, patch.path
        self._old, self._new = before, version.read(patch.path)
        self._history, self._names, self._search = history, names, search
        self._obstacle = "" if self._new is not None else version.obstacle(patch.path)

    def ported(self) -> PortedFile:
        """Return the outcome for the file."""
        if self._patch.old_path is None:
            return self._created()
        if self._new is None:
            return self._gone()
        if self._patch.new_path is None:
            return self._deleted(self._new)
        return self._changed(self._new)

    # -- a file that the patch makes, deletes, or does not find --------------------------------------

    def _created(self) -> PortedFile:
        made = apply_exact(None, self._patch)
        if self._obstacle:
            return self._whole("conflict", None, self._obstacle)
        if self._new is None:
            return self._whole("exact", made, "")
        if self._new == made:
            commit = self._history.added(self._path, self._added(), ()) if self._history else None
            return self._whole("already upstream", self._new, "the new version has this file", commit)
        both = _markers(self._names, FileScopes(self._new, self._path).lines, self._added())
        return self._whole("conflict", b"".join(both), "the new version has another file of this name")

    def _deleted(self, new: bytes) -> PortedFile:
        if new == self._old:
            return self._whole("exact", None, "")
        both = _markers(self._names, FileScopes(new, self._path).lines, ())
        return self._whole("conflict", b"".join(both), "the file that it deletes has changed")

    def _gone(self) -> PortedFile:
        commit = self._history.deleted(self._path) if self._history else None
        renamed = self._history.renamed(self._path) if self._history else None
        if self._patch.new_path is None:
            renamed = renamed or self._search.copy_of(self._old or b"", self._path)
            if renamed is not None or self._obstacle:
                return self._whole(
                    "target gone", None, self._obstacle or f"the file is {renamed} now", commit
                )
            return self._whole("already upstream", None, "the new version does not have this file", commit)
        old = HunkJudge(FileScopes(self._old or b"", self._path), FileScopes(b"", self._path))
        hunks = []
        for hunk in self._patch.hunks:
            inside = old.scope_of(hunk)
            places = self._search.find(hunk, inside, self._path, renamed)
            why = "the file is gone" if renamed is None else f"the file is {renamed} now"
            why = self._obstacle or why
            hunks.append(
                PortedHunk(
                    self._path,
                    hunk.number,
                    "target gone",
                    hunk.old_index + 1,
                    None,
                    inside,
                    why,
                    commit,
                    places,
                )
            )
        return PortedFile(self._path, None, None, tuple(hunks))

    def _added(self) -> tuple[bytes, ...]:
        return tuple(line for hunk in self._patch.hunks for line in hunk.new_lines)

    def _whole(self, state: HunkFate, after: bytes | None, why: str, commit: str | None = None) -> PortedFile:
        line = None if self._new is None else 1
        numbers = [(hunk.number, hunk.old_start) for hunk in self._patch.hunks] or [(0, 0)]
        hunks = [
            PortedHunk(self._path, number, state, start, line, "", why, commit) for number, start in numbers
        ]
        return PortedFile(self._path, self._new, after, tuple(hunks))

    # -- a file that it changes ----------------------------------------------------------------------

    def _changed(self, new: bytes) -> PortedFile:
        old, scopes = FileScopes(self._old or b"", self._path), FileScopes(new, self._path)
        judge = HunkJudge(old, scopes)
        judged = _without_overlaps([(hunk, judge.judge(hunk)) for hunk in self._patch.hunks])
        hunks = tuple(self._hunk(hunk, found) for hunk, found in judged)
        after = _edited(scopes.lines, judged, self._names)
        return PortedFile(self._path, new, after, hunks)

    def _hunk(self, hunk: Hunk, found: HunkJudgement) -> PortedHunk:
        commit: str | None = None
        places: tuple[LikelyPlace, ...] = ()
        if found.state == "already upstream":
            commit = self._bringing_commit(hunk)
        if found.state == "target gone":
            commit = self._losing_commit(found.inside)
            places = self._search.find(hunk, found.inside, self._path, None)
        line = None if found.index is None else found.index + 1
        return PortedHunk(
            *(self._path, hunk.number, found.state, hunk.old_index + 1, line),
            *(found.inside, found.why, commit, places),
        )

    def _bringing_commit(self, hunk: Hunk) -> str | None:
        if self._history is None:
            return None
        changes = list(placed_changes(FileScopes(self._old or b"", self._path), hunk))
        adding = max(changes, key=lambda change: len(change.added))
        if adding.added:
            return self._history.added(self._path, adding.added, adding.removed, adding.made_inside)
        return self._history.lost(self._path, changes[0].removed, changes[0].inside)

    def _losing_commit(self, name: str) -> str | None:
        """Return the commit that removed the first line of a class or function from the file."""
        old = FileScopes(self._old or b"", self._path)
        lines = old.range_of(name)
        if self._history is None or lines is None:
            return None
        # The first line alone may stand elsewhere, too: `def run(self):`.
        most = min(lines[1], lines[0] + _HEAD)
        ends = range(lines[0] + 1, most + 1)
        alone = (end for end in ends if len(find_all(old.lines, old.lines[lines[0] : end])) == 1)
        return self._history.lost(self._path, old.lines[lines[0] : next(alone, lines[0] + 1)])


def _without_overlaps(judged: list[tuple[Hunk, HunkJudgement]]) -> list[tuple[Hunk, HunkJudgement]]:
    """Turn hunks that overlap the hunk above, or would precede it, into conflicts."""
    done, result = 0, []
    for hunk, found in judged:
        edits = found.edits
        if edits and edits[0].start < done:
            why = "an earlier hunk of the patch is at or below its place now"
            found, edits = replace(found, state="conflict", why=why, edits=()), ()
        done = max([done, *(edit.end for edit in edits)])
        result.append((hunk, found))
    return result


def _edited(
    lines: Sequence[bytes], judged: Sequence[tuple[Hunk, HunkJudgement]], names: MarkerNames
) -> bytes:
    """Return the new version with the edits, and with both sides of each conflict."""
    edits = sorted(edit for _, found in judged for edit in found.edits)
    for hunk, found in judged:
        if found.state == "conflict":
            start = min(hunk.old_index if found.index is None else found.index, len(lines))
            edits.append(_conflict(lines, start, hunk, edits, names))
            edits.sort(key=lambda edit: (edit.start, edit.end))
    return edited_text(lines, edits)


def _conflict(
    lines: Sequence[bytes], start: int, hunk: Hunk, edits: Sequence[Edit], names: MarkerNames
) -> Edit:
    """Return the edit that writes both sides of a conflict into the file without overlapping other edits."""
    start = max([start, *(edit.end for edit in edits if edit.start <= start < edit.end)])
    end = min([start + hunk.old_count, len(lines), *(edit.start for edit in edits if edit.start >= start)])
    return Edit(start, max(start, end), tuple(_markers(names, lines[start:end], hunk.new_lines)))


def _markers(names: MarkerNames, ours: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes]:
    return [
        f"<<<<<<< {names.ours}\n".encode(),
        *map(_ended, ours),
        b"=======\n",
        *map(_ended, theirs),
        f">>>>>>> {names.theirs}\n".encode(),
    ]


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"
