"""A file as lines, with the class and function around each of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from npu_rl.stack.hunks.hunk_headings import PythonDefinition, definitions_of, enclosing_definition
from npu_rl.stack.hunks.hunk_match import split_lines

_PYTHON = (".py", ".pyi")
_FILLER = frozenset(
    ("return", "return None", "return self", "else:", "try:", "finally:", "pass", "continue", "break", '"""')
)  # lines that stand anywhere
_SHORTEST = 6  # characters of a line that tells a place


class FileScopes:
    """A file. Indexes count from 0, and a range has its first and the index after its last line.

    Attributes:
        lines: Its lines, with their ends.
    """

    def __init__(self, content: bytes, path: str) -> None:
        self.content, self.path = content, path
        self.lines = split_lines(content)

    @cached_property
    def definitions(self) -> list[PythonDefinition] | None:
        """Its functions and classes; None for a file that has no Python syntax tree."""
        return definitions_of(self.content) if self.path.endswith(_PYTHON) else None

    @cached_property
    def names(self) -> frozenset[str]:
        """The qualified names of its functions and classes."""
        return frozenset(definition.name for definition in self.definitions or ())

    def inside(self, first: int, end: int) -> str:
        """Return the qualified name of the innermost definition around lines; empty for none.

        An empty range is the place between two lines, and is inside what both of them are in.
        """
        if not self.definitions:
            return ""
        around = (first, first + 1) if first == end else (first + 1, end)
        holding = [d for d in self.definitions if d.first <= around[0] and around[1] <= d.last]
        return min(holding, key=lambda d: d.last - d.first).name if holding else ""

    def range_of(self, name: str) -> tuple[int, int] | None:
        """Return the lines of a definition; those of the file for no name; None if it is there twice or never."""
        if not name:
            return 0, len(self.lines)
        found = [d for d in self.definitions or () if d.name == name]
        return (found[0].first - 1, found[0].last) if len(found) == 1 else None

    def places(self, lines: Sequence[bytes], name: str) -> list[int]:
        """Return where lines stand directly in a class or function, or outside of all of them for no name."""
        if not lines:
            return []
        wanted, count = list(lines), len(lines)
        starts = [i for i, line in enumerate(self.lines) if line == wanted[0]]
        found = [i for i in starts if self.lines[i : i + count] == wanted]
        return [i for i in found if self.inside(i, i + count) == name]

    def name_at(self, index: int) -> str:
        """Return the qualified name of the innermost definition at a line."""
        found = enclosing_definition(self.definitions or (), index + 1)
        return found.name if found else ""


def is_telling(line: bytes) -> bool:
    """Return whether a line tells one place from others: it is not blank, a bracket, `else:` and the like."""
    text = line.decode("utf-8", "replace").strip()
    return len(text) >= _SHORTEST and text not in _FILLER and sum(c.isalnum() for c in text) >= _SHORTEST - 2
