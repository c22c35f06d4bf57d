"""The changes of a hunk with their places in the old version, and replaced lines of the new version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.enclosing_blocks import BlockHead
from npu_rl.stack.port.file_scopes import FileScopes, bare


class Edit(NamedTuple):
    """Replacement of lines in the new version, from `start` up to `end`; the range may be empty."""

    start: int
    end: int
    lines: tuple[bytes, ...]


class PlacedChange(NamedTuple):
    """A change of a hunk in the old version.

    Attributes:
        at: The number of lines above it.
        inside: The scope around the removed lines, or else around the added lines.
        made_inside: The scope around the added lines, whose name the hunk may have changed.
        frame: The scope to search for its place: it includes the blank lines at the ends of the change.
        made: The lines that it adds, bare, each with its innermost scope.
        blocks: The heads of the blocks around the added lines, or the removed ones if none are added; see
            `blocks_around`. A line that the hunk itself adds has the index -1; others have that of the old version.
    """

    at: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]
    inside: str
    made_inside: str
    frame: str
    made: tuple[tuple[bytes, str], ...]
    blocks: tuple[BlockHead, ...]

    @property
    def end(self) -> int:
        """The index after the removed lines."""
        return self.at + len(self.removed)


def placed_changes(old: FileScopes, hunk: Hunk) -> Iterator[PlacedChange]:
    """Yield the changes of a hunk, which fits the old version exactly."""
    at = hunk.old_index
    edits = [Edit(at + c.at, at + c.at + len(c.removed), c.added) for c in hunk.changes()]
    patched = FileScopes(edited_text(old.lines, edits), old.path)
    shift = 0
    for change in hunk.changes():
        first, added = hunk.old_index + change.at, len(change.added)
        start, end = first + shift, first + shift + added
        made, frame = patched.inside(start, end), patched.frame(start, end)
        around = made
        if change.removed:
            around, frame = (f(first, first + len(change.removed)) for f in (old.inside, old.frame))
        lines = tuple((bare(patched.lines[i]), patched.name_at(i)) for i in range(start, end))
        shift += added - len(change.removed)
        made_at = start + first_text(change.added)
        blocks = unedited_heads(patched.blocks(made_at), edits) if added else old.blocks(first)
        yield PlacedChange(first, change.removed, change.added, around, made, frame, lines, blocks)


def unedited_heads(heads: Sequence[BlockHead], edits: Sequence[Edit]) -> tuple[BlockHead, ...]:
    """Return the block heads of an edited text with their indexes before the edits; -1 for a line from an edit."""
    return tuple(head._replace(line=_unedited(head.line, edits)) for head in heads)


def _unedited(index: int, edits: Sequence[Edit]) -> int:
    shift = 0
    for edit in edits:
        if index < edit.start + shift:
            break
        if index < edit.start + shift + len(edit.lines):
            return -1
        shift += len(edit.lines) - (edit.end - edit.start)
    return index - shift


def first_text(lines: Sequence[bytes]) -> int:
    """Return the index of the first line that is not blank; 0 if all are."""
    return next((i for i, line in enumerate(lines) if line.strip()), 0)


def context_lines(hunk: Hunk) -> range:
    """Return the indexes of a hunk's old lines: its context and the removed lines."""
    return range(hunk.old_index, hunk.old_index + hunk.old_count)


def edited_text(lines: Sequence[bytes], edits: Sequence[Edit]) -> bytes:
    """Return the text after edits, which must be in order and not overlap."""
    result: list[bytes] = []
    done = 0
    for edit in edits:
        result += [*lines[done : edit.start], *edit.lines]
        done = edit.end
    return b"".join([*result, *lines[done:]])
