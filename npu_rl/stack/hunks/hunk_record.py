"""The record of one hunk: plain data that is enough to find its state later, without a repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from npu_rl.common.errors import PatchError
from npu_rl.stack.hunks.hunk_places import CONTEXT, Edge, Piece

State = Literal["in place", "superseded", "missing", "shifted", "altered"]
IN_PLACE: State = "in place"
SUPERSEDED: State = "superseded"
MISSING: State = "missing"
SHIFTED: State = "shifted"
ALTERED: State = "altered"


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
        copies: How often the result has it: with context, its preimage with context, then the lines alone, whole and
            change by change. So a twin elsewhere is not taken for it.
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
    copies: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers, safe to write as UTF-8."""
        return {
            k: [list(i) if isinstance(i, tuple) else i for i in v] if isinstance(v, tuple) else v
            for k, v in asdict(self).items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HunkRecord:
        """Return the record of `to_json`. Raises PatchError for invalid data."""
        try:
            return cls(
                **{
                    **data,
                    "before": tuple(data["before"]),
                    "lines": tuple((tag, text) for tag, text in data["lines"]),
                    "after": tuple(data["after"]),
                    "copies": tuple(data["copies"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PatchError(
                "A hunk record is damaged", why=str(error), hint="Run the command that wrote it again."
            ) from error

    def pieces(self) -> list[Piece]:
        """Return the whole hunk, and then, if it has several changes, each change by itself."""
        return pieces_of(self.line, self.before, self.lines, self.after)


def pieces_of(
    line: int, before: tuple[Edge, ...], lines: tuple[tuple[str, str], ...], after: tuple[Edge, ...]
) -> list[Piece]:
    """Return the pieces of a hunk: the whole, and then, if there are several changes, each of them."""

    def piece(start: int, end: int) -> Piece:
        above = [text for tag, text in lines[:start] if tag != "-"]
        below = [text for tag, text in lines[end:] if tag != "-"]
        whole = start == 0 and end == len(lines)
        return Piece(
            line + len(above),
            tuple(before) if whole else (*before, *above)[-CONTEXT:],
            tuple(text for tag, text in lines[start:end] if tag != "+"),
            tuple(text for tag, text in lines[start:end] if tag != "-"),
            tuple(after) if whole else (*below, *after)[:CONTEXT],
        )

    edges = [
        i
        for i in range(len(lines) + 1)
        if (i < len(lines) and lines[i][0] != " ") != (i > 0 and lines[i - 1][0] != " ")
    ]
    changes = [piece(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return [piece(0, len(lines)), *(changes if len(changes) > 1 else ())]
