"""Replay of a stack of patches that follows each hunk's lines and places to the final text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from npu_rl.stack.hunks.hunk_match import apply_exact, find_all, split_lines
from npu_rl.stack.hunks.hunk_places import CONTEXT, Edge, text_of
from npu_rl.stack.hunks.hunk_record import IN_PLACE, SUPERSEDED, HunkRecord, State, pieces_of
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, Patch


@dataclass
class _Change:
    """One change of one hunk.

    Attributes:
        order: The hunk's place in the stack.
        removed: The lines that it removes.
        adds: Whether it adds lines.
        at: Its place: the number of lines above it.
        swallowed: Whether a later change removed its place.
    """

    order: int
    removed: list[str]
    adds: bool
    at: int
    swallowed: bool = False


class _OriginLine(NamedTuple):
    """A line with the change that added it."""

    raw: bytes
    owner: _Change | None = None


@dataclass
class _TracedFile:
    exists: bool
    lines: list[_OriginLine]
    changes: list[_Change] = field(default_factory=list)

    def content(self) -> bytes | None:
        return b"".join(line.raw for line in self.lines) if self.exists else None


class _TracedHunk(NamedTuple):
    patch: str
    number: int
    path: str
    changes: list[_Change]


def trace_hunks(
    stack: Sequence[tuple[str, Patch]],
    base: Callable[[str], bytes | None],
    *,
    offsets: Mapping[tuple[str, int], int] | None = None,
) -> list[HunkRecord]:
    """Replay patches in order, and return the record of each hunk in the result, in the order of the stack.

    Args:
        stack: Each patch with its key, the name that records carry.
        base: Returns the content of a path before the first patch; None if there is no such file.
        offsets: Accepted offsets by patch key and hunk number.

    Raises:
        PatchError: If a patch does not apply exactly.
    """
    files: dict[str, _TracedFile] = {}
    hunks: list[_TracedHunk] = []
    for key, patch in stack:
        accepted = {number: n for (owner, number), n in (offsets or {}).items() if owner == key}
        for file_patch in patch.files:
            path = file_patch.path
            if path not in files:
                content = base(path)
                raw = [] if content is None else split_lines(content)
                files[path] = _TracedFile(content is not None, [_OriginLine(line) for line in raw])
            # One exact applier decides what fits, and says why if it does not.
            apply_exact(files[path].content(), file_patch, name=key, offsets=accepted)
            replay = _replay(files[path], file_patch, accepted, len(hunks))
            hunks += [_TracedHunk(key, hunk.number, path, changes) for hunk, changes in replay]
    return [_record(traced, files[traced.path]) for traced in hunks]


def _replay(
    file: _TracedFile, patch: FilePatch, offsets: Mapping[int, int], order: int
) -> Iterator[tuple[Hunk, list[_Change]]]:
    """Apply a patch's hunks to lines with origins, and yield each with its changes.

    Making or deleting the file removes the place of all earlier changes.
    """
    if patch.old_path is None or (patch.new_path is None and patch.hunks):
        for change in file.changes:
            change.swallowed = True
    file.exists = patch.new_path is not None
    shift = 0
    for number, hunk in enumerate(patch.hunks, order):
        start = hunk.old_index + offsets.get(hunk.number, 0)
        changes: list[_Change] = []
        for at, removed, added in hunk.changes():
            first = start + at + shift
            last = first + len(removed)
            change = _Change(number, [text_of(raw) for raw in removed], bool(added), first)
            for earlier in file.changes:
                _carry(earlier, first, last, len(added))
            file.lines[first:last] = [_OriginLine(raw, change) for raw in added]
            changes.append(change)
            file.changes.append(change)
            shift += len(added) - len(removed)
        yield hunk, changes


def _carry(change: _Change, first: int, last: int, added: int) -> None:
    """Update a change's place after lines [first, last) are replaced by `added` lines."""
    if first < change.at < last:
        change.swallowed = True
        change.at = first
    elif change.at >= last and change.at > first:
        change.at += added - (last - first)


def _record(traced: _TracedHunk, file: _TracedFile) -> HunkRecord:
    changes = {id(change) for change in traced.changes}
    own_lines = [
        i for i, line in enumerate(file.lines) if line.owner is not None and id(line.owner) in changes
    ]
    for i in reversed(own_lines):  # what a change removed stood above what is left of its own lines
        owner = file.lines[i].owner
        assert owner is not None
        owner.at = i
    surviving = {id(file.lines[i].owner) for i in own_lines}
    live = [c for c in traced.changes if id(c) in surviving or (not c.adds and not _undone(c, file))]
    line = min(c.at for c in live or traced.changes) + 1 if file.exists else 0
    state: State = IN_PLACE if live else SUPERSEDED
    head = HunkRecord(traced.patch, traced.number, traced.path, line, state)
    return _with_lines(head, file, live, own_lines) if live else head


def _undone(change: _Change, file: _TracedFile) -> bool:
    """Return whether nothing is left of a deletion: its place is gone, or later patches restored its lines."""
    if change.swallowed:
        return True
    count = len(change.removed)
    for start in (change.at, change.at - count):
        span = file.lines[max(start, 0) : start + count]
        later = all(line.owner is not None and line.owner.order > change.order for line in span)
        if later and [text_of(line.raw) for line in span] == change.removed:
            return True
    return False


def _with_lines(head: HunkRecord, file: _TracedFile, live: list[_Change], own_lines: list[int]) -> HunkRecord:
    own, texts = set(own_lines), [text_of(line.raw) for line in file.lines]
    first = min(c.at for c in live)
    end = max([c.at for c in live] + [i + 1 for i in own_lines])
    tagged: list[tuple[str, str]] = []
    for i in range(first, end + 1):
        for change in live:
            if change.at == i:
                tagged += [("-", text) for text in change.removed]
        if i < end:
            tagged.append(("+" if i in own else " ", texts[i]))
    lines: list[Edge] = [None, *texts, None]
    new = [text for tag, text in tagged if tag != "-"]
    old = [text for tag, text in tagged if tag != "+"]
    above, below = lines[first::-1], lines[end + 1 :]
    before = tuple(above[: _distinct_context(old[::-1], new[::-1], above)][::-1])
    after = tuple(below[: _distinct_context(old, new, below)])
    pieces = pieces_of(first + 1, before, tuple(tagged), after)
    copies = (
        len(find_all(lines, [*before, *new, *after])),
        len(find_all(lines, [*before, *old, *after])),
        *(len(find_all(lines, piece.new)) for piece in pieces),
    )
    return replace(head, before=before, lines=tuple(tagged), after=after, copies=copies)


def _distinct_context(old: list[str], new: list[str], around: list[Edge]) -> int:
    """Return how many context lines to keep on one side so that hunk and preimage can't both fit at one place.

    Three are not enough among equal lines: a line added to a run of equal lines shows only at the end of the run.
    """
    new_side, old_side = [*new, *around], [*old, *around]
    common = next(
        (i for i, (a, b) in enumerate(zip(new_side, old_side, strict=False)) if a != b), len(new_side)
    )
    return max(CONTEXT, common + 1 - len(new))
