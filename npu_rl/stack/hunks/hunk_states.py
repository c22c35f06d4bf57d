"""The state of each recorded hunk in the current text of its file."""

from __future__ import annotations

from typing import NamedTuple

from npu_rl.stack.hunks.hunk_match import find_all
from npu_rl.stack.hunks.hunk_places import find, padded
from npu_rl.stack.hunks.hunk_record import ALTERED, IN_PLACE, MISSING, SHIFTED, SUPERSEDED, HunkRecord, State


class HunkState(NamedTuple):
    """The state of a hunk.

    Attributes:
        state: Its state.
        line: The line of its first own line in the current text, from 1, or where it should be; 0 if there is no
            file.
    """

    state: State
    line: int


def hunk_state(record: HunkRecord, current: bytes | None) -> HunkState:
    """Return the state of a hunk in the current text of its file; None if there is no such file.

    - `in place`: its lines are where the lock has them.
    - `superseded`: later patches replaced it, as in the lock.
    - `shifted`: intact on another line.
    - `missing`: its preimage is there, or the whole file is gone.
    - `altered`: anything else.
    """
    has_no_file = record.line == 0
    if current is None:
        return HunkState(record.state if has_no_file else MISSING, 0)
    if record.state == SUPERSEDED:
        return HunkState(SUPERSEDED, record.line)
    lines = padded(current)
    if has_no_file:
        removed = [text for tag, text in record.lines if tag == "-"]
        places = find_all(lines, removed)
        return HunkState(MISSING if places or not removed else ALTERED, places[0] if places else 1)
    pieces = record.pieces()
    whole = find(pieces[0], lines, record.copies[:2], record.copies[2])
    if whole.fits is None and len(pieces) > 1:
        parts = [find(p, lines, None, n) for p, n in zip(pieces[1:], record.copies[3:], strict=True)]
        fitting = {part.fits for part in parts}
        if fitting == {"new"}:
            moved = any(part.line != piece.line for part, piece in zip(parts, pieces[1:], strict=True))
            return HunkState(SHIFTED if moved else IN_PLACE, parts[0].line)
        if fitting == {"old"}:
            return HunkState(MISSING, parts[0].line)
        return HunkState(ALTERED, parts[0].line)
    if whole.fits == "new":
        return HunkState(IN_PLACE if whole.line == record.line else SHIFTED, whole.line)
    return HunkState(MISSING if whole.fits == "old" else ALTERED, whole.line)
