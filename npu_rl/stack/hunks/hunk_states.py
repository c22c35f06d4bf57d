"""The record of one hunk in the locked result, and its state in the current text of its file, without a repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from npu_rl.common.errors import PatchError
from npu_rl.stack.hunks.hunk_match import find_all, split_lines

State = Literal["in place", "superseded", "missing", "shifted", "altered"]
IN_PLACE: State = "in place"
SUPERSEDED: State = "superseded"
MISSING: State = "missing"
SHIFTED: State = "shifted"
ALTERED: State = "altered"

CONTEXT = 3
Edge = str | None


class HunkState(NamedTuple):
    """The state of a hunk.

    Attributes:
        line: The line of its first own line in the current text, from 1, or where it should be; 0 if there is no
            file.
    """

    state: State
    line: int


@dataclass(frozen=True)
class HunkRecord:
    """One hunk as it is in the locked result.

    Attributes:
        patch: The patch's name.
        hunk: The hunk's number in it, from 1.
        file: The target path.
        line: Line of its first own line (for a deletion, of the line below); 0 if the result has no such file.
        state: `in place` or `superseded`.
        component: The component that the patch is for.
        before: The lines above; None is the edge of the file.
        lines: The lines from its first to its last own line with their tags: `+` own, `-` removed by it, ` ` of
            others.
        after: The lines below; None is the edge of the file.
    """

    patch: str
    hunk: int
    file: str
    line: int
    state: State
    component: str | None = None
    before: tuple[Edge, ...] = ()
    lines: tuple[tuple[str, str], ...] = ()
    after: tuple[Edge, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers, safe to write as UTF-8."""
        lines = [list(pair) for pair in self.lines]
        return {**asdict(self), "before": list(self.before), "lines": lines, "after": list(self.after)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HunkRecord:
        """Return the record of `to_json`. Raises PatchError for invalid data."""
        try:
            lines = tuple((tag, text) for tag, text in data["lines"])
            edges = {side: tuple(data[side]) for side in ("before", "after")}
            return cls(**{**data, "lines": lines, **edges})
        except (KeyError, TypeError, ValueError) as error:
            raise PatchError(
                "A hunk record is damaged", why=str(error), hint="Run the command that wrote it again."
            ) from error

    def side(self, tag: Literal["+", "-"]) -> tuple[str, ...]:
        """Return its lines (`+`), or those before it (`-`), with the lines of others between them."""
        return tuple(text for other, text in self.lines if other in (tag, " "))


def text_of(raw: bytes) -> str:
    """Return a line as text that JSON can hold; different lines give different texts."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "\0" + raw.decode("latin-1")


def hunk_state(record: HunkRecord, current: bytes | None) -> HunkState:
    """Return the state of a hunk in the current text of its file; None if there is no such file.

    - `in place`: its lines are where the lock has them.
    - `superseded`: later patches replaced it, as in the lock.
    - `shifted`: intact on another line.
    - `missing`: its preimage is there, or the whole file is gone.
    - `altered`: anything else.
    """
    if current is None:
        return HunkState(record.state if record.line == 0 else MISSING, 0)
    if record.state == SUPERSEDED:
        return HunkState(SUPERSEDED, record.line)
    text = _between_edges(current)
    lines = text.lines
    if record.line == 0:  # the file that it deletes is there
        places = find_all(lines, record.side("-"))
        return HunkState(MISSING if places else ALTERED, places[0] if places else 1)
    new, old = (max(_places(record, text, tag), default=None) for tag in ("+", "-"))
    if new is not None and (old is None or new >= old):
        return HunkState(IN_PLACE if new.line == record.line else SHIFTED, new.line)
    if old is not None:
        return HunkState(MISSING, old.line)
    return HunkState(ALTERED, min(record.line, len(lines) - 1))


class _Text(NamedTuple):
    """The lines of a file between its edges, and where each of them is."""

    lines: tuple[Edge, ...]
    places: Mapping[Edge, Sequence[int]]


@lru_cache(maxsize=4)
def _between_edges(content: bytes) -> _Text:
    """Cached for the next hunk of the same file."""
    lines = (None, *(text_of(line) for line in split_lines(content)), None)
    places: dict[Edge, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line, []).append(number)
    return _Text(lines, places)


class _Place(NamedTuple):
    """A place in a text; the greatest is the likeliest: the most lines of context, then the nearest."""

    context: int
    nearness: int
    line: int


def _places(record: HunkRecord, text: _Text, tag: Literal["+", "-"]) -> Iterator[_Place]:
    """Yield each place that has the own lines of one side, and enough of the context."""
    lines, core = text.lines, record.side(tag)
    enough = min(CONTEXT, (len(record.before) + len(record.after) + 1) // 2)
    tags = [other for other, _ in record.lines if other in (tag, " ")]
    # Lines of others between its own ones count as context, unless there is nothing else.
    own = [n for n in range(len(core)) if tags[n] == tag or tag not in tags]
    # Without lines it has to be below the line above it.
    anchor, at = (core[own[0]], own[0]) if own else (next(reversed(record.before), None), -1)
    starts = [
        start
        for start in (number - at for number in text.places.get(anchor, ()))
        if 0 < start < len(lines) - len(core) and all(lines[start + n] == core[n] for n in own)
    ]
    for start in starts:
        above = _equal(record.before[::-1], lines[start - 1 :: -1])
        below = _equal(record.after, lines[start + len(core) :])
        inside = sum(one == other for one, other in zip(core, lines[start:], strict=False)) - len(own)
        sure = above + below >= enough and (core or (above and below))
        alone = tag == "+" and core and (len(starts) == 1 or (start == record.line and above + below))
        if sure or alone:
            yield _Place(above + inside + below, -abs(start - record.line), start)


def _equal(wanted: Sequence[Edge], there: Sequence[Edge]) -> int:
    """Return how many lines are equal, from the first on."""
    pairs = zip(wanted, there, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(wanted), len(there)))
