"""Replay of a stack of patches that follows each hunk's lines and places to the final text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from npu_rl.stack.hunks.hunk_match import apply_exact, split_lines
from npu_rl.stack.hunks.hunk_states import CONTEXT, IN_PLACE, SUPERSEDED, Edge, HunkRecord, text_of
from npu_rl.stack.patches.patch_model import FilePatch, Patch

_RUN = 200  # equal lines beside a hunk at most, beyond which it is not told from its preimage


@dataclass(eq=False)
class _Change:
    """One change of one hunk.

    Attributes:
        order: The hunk's place in the stack.
        adds: Whether it adds lines.
        swallowed: Whether its file was made anew or deleted since.
    """

    order: int
    adds: bool
    swallowed: bool = False


@dataclass(eq=False)
class _Line:
    """A line that a file has, or has had: the changes that added it and removed it."""

    raw: bytes
    added: _Change | None = None
    removed: _Change | None = None


@dataclass
class _TracedFile:
    exists: bool
    lines: list[_Line]
    changes: list[_Change] = field(default_factory=list)

    def present(self) -> list[int]:
        """Return where the lines are that were not removed."""
        return [n for n, line in enumerate(self.lines) if line.removed is None]

    def content(self) -> bytes | None:
        return b"".join(self.lines[n].raw for n in self.present()) if self.exists else None


class _TracedHunk(NamedTuple):
    patch: str
    number: int
    path: str
    changes: list[_Change]


def trace_hunks(stack: Sequence[tuple[str, Patch]], base: Callable[[str], bytes | None]) -> list[HunkRecord]:
    """Replay patches in order, and return the record of each hunk in the result, in the order of the stack.

    Args:
        stack: Each patch with its key, the name that records carry.
        base: Returns the content of a path before the first patch; None if there is no such file.

    Raises:
        PatchError: If a patch does not apply exactly.
    """
    files: dict[str, _TracedFile] = {}
    hunks: list[_TracedHunk] = []
    for key, patch in stack:
        for file_patch in patch.files:
            path = file_patch.path
            if path not in files:
                content = base(path)
                raw = [] if content is None else split_lines(content)
                files[path] = _TracedFile(content is not None, [_Line(line) for line in raw])
            # One exact applier decides what fits, and says why if it does not.
            apply_exact(files[path].content(), file_patch, name=key)
            replayed = _replay(files[path], file_patch, len(hunks))
            hunks += [
                _TracedHunk(key, hunk.number, path, changes)
                for hunk, changes in zip(file_patch.hunks, replayed, strict=True)
            ]
    return [_record(traced, files[traced.path]) for traced in hunks]


def _replay(file: _TracedFile, patch: FilePatch, order: int) -> list[list[_Change]]:
    """Apply a patch to lines with origins, and return the changes of each hunk."""
    if patch.old_path is None or patch.new_path is None:
        for change in file.changes:
            change.swallowed = True
    file.exists = patch.new_path is not None
    present = file.present()
    made: list[list[_Change]] = []
    inserted: list[tuple[int, list[_Line]]] = []  # before the line with this number
    for number, hunk in enumerate(patch.hunks, order):
        made.append([])
        for at, removed, added in hunk.changes():
            change = _Change(number, bool(added))
            first = hunk.old_index + at
            for n in present[first : first + len(removed)]:
                file.lines[n].removed = change
            end = present[first + len(removed)] if first + len(removed) < len(present) else len(file.lines)
            inserted.append((end, [_Line(raw, change) for raw in added]))
            made[-1].append(change)
    for end, lines in reversed(inserted):
        file.lines[end:end] = lines
    file.changes += [change for changes in made for change in changes]
    return made


def _record(traced: _TracedHunk, file: _TracedFile) -> HunkRecord:
    lines = file.lines
    surviving = {id(line.added) for line in lines if line.removed is None}
    live = {id(c) for c in traced.changes if id(c) in surviving or (not c.adds and not _undone(c, lines))}
    every = {id(change) for change in traced.changes}
    places = _places(lines, live or every)
    above = [line.raw for line in lines[: places[0]] if line.removed is None]
    line = len(above) + 1 if file.exists else 0
    if not live:
        return HunkRecord(traced.patch, traced.number, traced.path, line, SUPERSEDED)
    tagged: list[tuple[str, str]] = []
    shown = set[int]()  # changes that add lines: what they removed is shown above the first of these
    for one in lines[places[0] : places[-1] + 1]:
        if one.removed is None and id(one.added) in live:
            if id(one.added) not in shown:
                tagged += [("-", text_of(other.raw)) for other in lines if other.removed is one.added]
                shown.add(id(one.added))
            tagged.append(("+", text_of(one.raw)))
        elif one.removed is None:
            tagged.append((" ", text_of(one.raw)))
        elif id(one.removed) in live and not one.removed.adds:
            tagged.append(("-", text_of(one.raw)))
    below = [line.raw for line in lines[places[-1] + 1 :] if line.removed is None]
    new = [text for tag, text in tagged if tag != "-"]
    old = [text for tag, text in tagged if tag != "+"]
    most = CONTEXT + len(tagged) + _RUN
    upward: list[Edge] = [*map(text_of, above[: -most - 1 : -1]), *([None] if len(above) <= most else ())]
    downward: list[Edge] = [*map(text_of, below[:most]), *([None] if len(below) <= most else ())]
    before = upward[: _distinct_context(old[::-1], new[::-1], upward)]
    after = downward[: _distinct_context(old, new, downward)]
    head = (traced.patch, traced.number, traced.path, line, IN_PLACE)
    return HunkRecord(*head, before=tuple(before[::-1]), lines=tuple(tagged), after=tuple(after))


def _places(lines: Sequence[_Line], changes: Iterable[int]) -> list[int]:
    """Return where the lines of these changes are that remain, or else those that they added or removed."""
    wanted = set(changes)
    found = [
        n
        for n, line in enumerate(lines)
        if (line.removed is None and id(line.added) in wanted)
        or (line.removed is not None and not line.removed.adds and id(line.removed) in wanted)
    ]
    return found or [n for n, line in enumerate(lines) if wanted & {id(line.added), id(line.removed)}]


def _undone(change: _Change, lines: Sequence[_Line]) -> bool:
    """Return whether nothing is left of a deletion: its place is gone, or later patches restored its lines."""
    if change.swallowed:
        return True
    own = [n for n, line in enumerate(lines) if line.removed is change]

    def beside(step: int) -> Iterable[_Line]:
        ends = lines[own[-1] + 1 :] if step > 0 else lines[: own[0]][::-1]
        return (line for line in ends if line.removed is None or line.removed.order > change.order)

    one, other = next(iter(beside(-1)), None), next(iter(beside(1)), None)
    if one is not None and other is not None and one.removed is not None and one.removed is other.removed:
        return True  # one later change removed the lines around it
    removed = [lines[n].raw for n in own]
    for step in (1, -1):
        near = [line for line in beside(step) if line.removed is None][: len(removed)][::step]
        later = all(line.added is not None and line.added.order > change.order for line in near)
        if later and [line.raw for line in near] == removed:
            return True
    return False


def _distinct_context(old: list[str], new: list[str], around: list[Edge]) -> int:
    """Return how many context lines to keep on one side so that hunk and preimage can't both fit at one place.

    Three are not enough among equal lines: a line added to a run of equal lines shows only at the end of the run.
    """
    new_side, old_side = [*new, *around], [*old, *around]
    common = next(
        (i for i, (a, b) in enumerate(zip(new_side, old_side, strict=False)) if a != b), len(new_side)
    )
    return max(CONTEXT, common + 1 - len(new))
