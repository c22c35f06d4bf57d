"""Search for a recorded hunk in a text: with all of its context, then with as much as remains.

Texts are lists of lines with their ends, and None above the first and below the last one, so that a line's number is
its index, and the edge of a file can be matched like a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from npu_rl.stack.hunks.hunk_match import find_all, split_lines

CONTEXT = 3
Edge = str | None

_MIN_CONTEXT = 3  # lines of context that have to fit where a place is new or lines are missing


class Piece(NamedTuple):
    """A hunk, or one change of it, as locked.

    Attributes:
        line: The line of its first own line.
        before: The context above.
        old: Its preimage.
        new: Its lines.
        after: The context below.
    """

    line: int
    before: tuple[Edge, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    after: tuple[Edge, ...]


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        fits: `new`: the hunk; `old`: its preimage; None: neither.
        line: The best line for it.
    """

    fits: Literal["new", "old"] | None
    line: int


class _Place(NamedTuple):
    """A place in a text that matches some lines.

    Attributes:
        line: Its first line.
        above: How many lines of the context fit above.
        below: How many lines of the context fit below.
    """

    line: int
    above: int
    below: int

    @property
    def score(self) -> int:
        return self.above + self.below


def text_of(raw: bytes) -> str:
    """Return a line as text that JSON can hold; different lines give different texts."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "\0" + raw.decode("latin-1")


@lru_cache(maxsize=4)
def padded(content: bytes) -> tuple[Edge, ...]:
    """Return the lines between two edges. Cached for the next hunk of the same file."""
    return (None, *(text_of(line) for line in split_lines(content)), None)


def find(piece: Piece, lines: tuple[Edge, ...], copies: Sequence[int] | None, alone: int) -> Found:
    """Find a piece or its preimage.

    Args:
        piece: The piece.
        lines: The current text.
        copies: How often the locked text has the piece, and its preimage, with context; None skips this comparison.
        alone: How often the locked text has the piece's lines without context.
    """
    if copies is not None:
        exact = _find_with_context(piece, lines, copies)
        if exact is not None:
            return exact
    return _find_with_remaining_context(piece, lines, alone)


def _find_with_context(piece: Piece, lines: tuple[Edge, ...], copies: Sequence[int]) -> Found | None:
    head = len(piece.before)
    stated = piece.line - head
    new = (*piece.before, *piece.new, *piece.after)
    if stated >= 0 and lines[stated : stated + len(new)] == new:
        return Found("new", piece.line)
    news = find_all(lines, new)
    olds = find_all(lines, (*piece.before, *piece.old, *piece.after))

    def nearest(places: list[int]) -> int:
        return min(places, key=lambda i: abs(i - stated)) + head

    # Twins of the preimage or of the hunk that the locked text already had prove nothing.
    lost, returned = len(news) < copies[0], len(olds) > copies[1]
    if olds and (returned or (lost and stated in olds)) and (lost or not news):
        return Found("old", nearest(olds))
    if news and (not lost or not olds):
        return Found("new", nearest(news))
    return None


def _find_with_remaining_context(piece: Piece, lines: tuple[Edge, ...], alone: int) -> Found:
    news, olds = _places(piece, piece.new, lines), _places(piece, piece.old, lines)
    enough = min(_MIN_CONTEXT, (len(piece.before) + len(piece.after) + 1) // 2)

    def best(places: list[_Place]) -> _Place:
        return max(places, key=lambda p: (p.score, -abs(p.line - piece.line)))

    new = best(news) if news else None
    old = best(olds) if olds else None
    if old is not None and (old.score < enough or (not piece.old and not (old.above and old.below))):
        old = None
    all_there = bool(piece.new) and len(news) >= alone
    if new is not None and not _is_reliable(new, piece, enough, all_there):
        new = None
    # A preimage without lines fits anywhere between two of its neighbours: it is weak evidence.
    if new is not None and (old is None or new.score >= old.score or (all_there and not piece.old)):
        return Found("new", new.line)
    if old is not None:
        return Found("old", old.line)
    around = [i for i in range(1, len(lines)) if (s := _score_place(piece, lines, i, i)).above or s.below]
    last = len(lines) - 1
    return Found(None, min(around, key=lambda i: abs(i - piece.line), default=min(piece.line, last)))


def _is_reliable(place: _Place, piece: Piece, enough: int, all_there: bool) -> bool:
    if not piece.new:
        return bool(place.above and place.below) and place.score >= enough
    return place.score >= enough or all_there or (place.line == piece.line and place.score > 0)


def _places(piece: Piece, core: tuple[str, ...], lines: tuple[Edge, ...]) -> list[_Place]:
    starts = find_all(lines, core) if core else list(range(1, len(lines)))
    return [_score_place(piece, lines, start, start + len(core)) for start in starts]


def _score_place(piece: Piece, lines: tuple[Edge, ...], start: int, end: int) -> _Place:
    above = 0
    while above < min(len(piece.before), start) and piece.before[-1 - above] == lines[start - 1 - above]:
        above += 1
    below = 0
    while below < min(len(piece.after), len(lines) - end) and piece.after[below] == lines[end + below]:
        below += 1
    return _Place(start, above, below)
