"""Finding a carried hunk in a text: with all of the text around it, then with as much as is left.

Texts are lists of lines with their ends, None above the first and below the last, so that a line's
number is its index, and the edge of a file can be matched like a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from npu_rl.patches.hunk_match import split_lines

CONTEXT = 3
Edge = str | None

_ENOUGH = 3  # lines of the text around that must be left where a place is new or lines are gone


class Piece(NamedTuple):
    """A hunk, or one change of it: the text around, its preimage and its lines, as locked at `line`."""

    line: int
    before: tuple[Edge, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    after: tuple[Edge, ...]


class Found(NamedTuple):
    """Which side fits (`new`: the hunk, `old`: its preimage, None: neither), and the best line for it."""

    fits: Literal["new", "old"] | None
    line: int


class _Place(NamedTuple):
    """A place of some lines, and how many lines of the text around fit above and below it."""

    line: int
    above: int
    below: int

    @property
    def score(self) -> int:
        return self.above + self.below


def text_of(raw: bytes) -> str:
    """A line as a string that any JSON writer takes; different lines give different strings."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "\0" + raw.decode("latin-1")


@lru_cache(maxsize=4)
def padded(content: bytes) -> tuple[Edge, ...]:
    """The lines between two edges. Kept for the next hunk of the same file."""
    return (None, *(text_of(line) for line in split_lines(content)), None)


def find_all(lines: Sequence[Edge], pattern: Sequence[Edge]) -> list[int]:
    """Every index where the pattern stands; none for an empty one."""
    if not pattern:
        return []
    wanted = tuple(pattern)
    return [
        i
        for i in range(len(lines) - len(wanted) + 1)
        if lines[i] == wanted[0] and tuple(lines[i : i + len(wanted)]) == wanted
    ]


def find(piece: Piece, lines: tuple[Edge, ...], copies: Sequence[int] | None, alone: int) -> Found:
    """Find a piece or its preimage.

    copies: how often the locked text holds the piece, and its preimage, with the text around; None to
    skip that comparison. alone: how often it holds the piece's lines by themselves.
    """
    if copies is not None:
        exact = _with_everything(piece, lines, copies)
        if exact is not None:
            return exact
    return _with_what_is_left(piece, lines, alone)


def _with_everything(piece: Piece, lines: tuple[Edge, ...], copies: Sequence[int]) -> Found | None:
    head = len(piece.before)
    stated = piece.line - head
    new = (*piece.before, *piece.new, *piece.after)
    if stated >= 0 and lines[stated : stated + len(new)] == new:
        return Found("new", piece.line)
    news = find_all(lines, new)
    olds = find_all(lines, (*piece.before, *piece.old, *piece.after))

    def nearest(places: list[int]) -> int:
        return min(places, key=lambda i: abs(i - stated)) + head

    # A twin of the preimage that the locked text had already says nothing; nor does a twin of the hunk.
    lost, returned = len(news) < copies[0], len(olds) > copies[1]
    if olds and (returned or (lost and stated in olds)) and (lost or not news):
        return Found("old", nearest(olds))
    if news and (not lost or not olds):
        return Found("new", nearest(news))
    return None


def _with_what_is_left(piece: Piece, lines: tuple[Edge, ...], alone: int) -> Found:
    news, olds = _places(piece, piece.new, lines), _places(piece, piece.old, lines)
    enough = min(_ENOUGH, (len(piece.before) + len(piece.after) + 1) // 2)

    def best(places: list[_Place]) -> _Place:
        return max(places, key=lambda p: (p.score, -abs(p.line - piece.line)))

    new = best(news) if news else None
    old = best(olds) if olds else None
    if old is not None and (old.score < enough or (not piece.old and not (old.above and old.below))):
        old = None
    all_there = bool(piece.new) and len(news) >= alone
    if new is not None and not _trusted(new, piece, enough, all_there):
        new = None
    # A preimage without lines fits anywhere between two of its neighbours: it is weak evidence.
    if new is not None and (old is None or new.score >= old.score or (all_there and not piece.old)):
        return Found("new", new.line)
    if old is not None:
        return Found("old", old.line)
    around = [i for i in range(1, len(lines)) if (s := _around(piece, lines, i, i)).above or s.below]
    return Found(
        None, min(around, key=lambda i: abs(i - piece.line), default=min(piece.line, len(lines) - 1))
    )


def _trusted(place: _Place, piece: Piece, enough: int, all_there: bool) -> bool:
    if not piece.new:
        return bool(place.above and place.below) and place.score >= enough
    return place.score >= enough or all_there or (place.line == piece.line and place.score > 0)


def _places(piece: Piece, core: tuple[str, ...], lines: tuple[Edge, ...]) -> list[_Place]:
    starts = find_all(lines, core) if core else list(range(1, len(lines)))
    return [_around(piece, lines, start, start + len(core)) for start in starts]


def _around(piece: Piece, lines: tuple[Edge, ...], start: int, end: int) -> _Place:
    above = 0
    while above < min(len(piece.before), start) and piece.before[-1 - above] == lines[start - 1 - above]:
        above += 1
    below = 0
    while below < min(len(piece.after), len(lines) - end) and piece.after[below] == lines[end + below]:
        below += 1
    return _Place(start, above, below)
