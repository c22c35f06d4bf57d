"""Records of hunks in the locked result, by replay of a stack of patches, and their states in the current files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from npu_rl.common.errors import PatchError
from npu_rl.stack.hunks.hunk_match import apply_exact, find_all, split_lines
from npu_rl.stack.patches.patch_model import FilePatch, Patch

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
    places = _line_places(lines, live or every)
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


def _line_places(lines: Sequence[_Line], changes: Iterable[int]) -> list[int]:
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
