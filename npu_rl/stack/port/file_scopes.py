"""A file as lines, each with its scope: class and function, or the keys of a configuration."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from npu_rl.stack.hunks.hunk_headings import PROSE, SIGNATURE, definitions_of
from npu_rl.stack.hunks.hunk_match import split_lines
from npu_rl.stack.hunks.key_paths import SUFFIXES, KeyPlace, read_keys
from npu_rl.stack.port.enclosing_blocks import BlockHead, blocks_around

PYTHON = (".py", ".pyi")
_FILLER = frozenset(
    ("return", "return None", "return self", "else:", "try:", "finally:", "pass", "continue", "break", '"""')
)  # lines that stand anywhere
_ITEM = re.compile(r"\[\d+\](?=\.|$)")
_ASSIGNED = re.compile(rb"([A-Za-z_][\w., \[\]'\"]*?)(?:: [^=]*)? = ")
_SHELL_FUNCTION = re.compile(r"function\s+([\w:.-]+)")
_SHORTEST = 6  # characters of a line that tells a place


class FileScope(NamedTuple):
    """A class, a function, or a mapping of a configuration, with its first and last line, from 1."""

    first: int
    last: int
    name: str


class FileScopes:
    """The scopes of a file. Indexes count from 0; a range ends after its last line.

    Attributes:
        lines: Its lines, with their ends.
    """

    def __init__(self, content: bytes, path: str) -> None:
        self.content, self.path = content, path
        self.lines = split_lines(content)

    @cached_property
    def scopes(self) -> list[FileScope] | None:
        """Its classes and functions, or mappings; None if they are unknown, as in an invalid file."""
        if self.path.endswith(PYTHON):
            found = definitions_of(self.content)
            return None if found is None else [FileScope(d.first, d.last, d.name) for d in found]
        if self.path.endswith(SUFFIXES):
            keys = read_keys(self.content, self.path)
            return None if keys is None else _mappings(keys, len(self.lines))
        return None if self.path.endswith(PROSE) else _below_signatures(self.lines)

    @cached_property
    def names(self) -> frozenset[str]:
        """The qualified names of its scopes."""
        return frozenset(scope.name for scope in self.scopes or ())

    def inside(self, first: int, end: int) -> str:
        """Return the qualified name of the innermost scope around lines, or "".

        A scope that is entirely within the lines is not around them. Blank lines at their ends don't count: they may
        be between two functions while the others are in the first one.
        """
        solid = [i for i in range(first, min(end, len(self.lines))) if self.lines[i].strip()]
        return self.frame(solid[0], solid[-1] + 1) if solid else self.frame(first, end)

    def frame(self, first: int, end: int) -> str:
        """Return the innermost scope around lines, including blank lines at their ends."""
        around = [
            scope
            for scope in self.scopes or ()
            if scope.first <= first + 1
            and end <= scope.last
            and not (scope.first == first + 1 and scope.last == end)
        ]
        return min(around, key=lambda scope: scope.last - scope.first).name if around else ""

    def times(self, name: str) -> int:
        """Return how many scopes have this name, which a property and its setter share."""
        return sum(scope.name == name for scope in self.scopes or ())

    def head(self, name: str) -> list[bytes]:
        """Return the first two lines of a scope."""
        lines = self.range_of(name)
        return [] if lines is None else self.lines[lines[0] : min(lines[0] + 2, lines[1])]

    def items_around(self, name: str) -> list[str]:
        """Return the names of the list items that contain a scope or are the scope, the outermost first."""
        return [name[: found.end()] for found in _ITEM.finditer(name)]

    def items_beside(self, item: str) -> list[str]:
        """Return the names of the other items of the same list."""
        start = item.rpartition("[")[0]
        return [
            name for name in self.names if name != item and re.fullmatch(r"\[\d+\]", name.removeprefix(start))
        ]

    def own_lines(self, item: str, others: Sequence[str]) -> set[bytes]:
        """Return the bare lines of an item that are in none of the other items."""
        ranges = {name: self.range_of(name) for name in (item, *others)}
        texts = {
            name: {bare(line) for line in self.lines[slice(*lines)]}
            for name, lines in ranges.items()
            if lines
        }
        return texts.pop(item, set()).difference(*texts.values()) - {b""}

    @cached_property
    def faults(self) -> frozenset[str]:
        """The faults of a file that can still be read: Python that does not compile, duplicate keys."""
        if self.path.endswith(SUFFIXES):
            found = Counter(key.path for key in read_keys(self.content, self.path) or ())
            return frozenset(".".join(path) for path, times in found.items() if times > 1)
        if self.path.endswith(PYTHON):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile(self.content, self.path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError) as error:
                return frozenset({type(error).__name__})
        return frozenset()

    def range_of(self, name: str) -> tuple[int, int] | None:
        """Return the range of a scope, or of the file for an empty name; None unless exactly one scope has the name."""
        if not name:
            return 0, len(self.lines)
        found = [scope for scope in self.scopes or () if scope.name == name]
        return (found[0].first - 1, found[0].last) if len(found) == 1 else None

    def places(self, lines: Sequence[bytes], name: str) -> list[int]:
        """Return the indexes where these lines are directly in a scope; an empty name means outside of all scopes."""
        if not lines:
            return []
        wanted, count = list(lines), len(lines)
        starts = [i for i, line in enumerate(self.lines) if line == wanted[0]]
        found = [i for i in starts if self.lines[i : i + count] == wanted]
        return [i for i in found if self.inside(i, i + count) == name]

    @cached_property
    def _by_text(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for i, line in enumerate(self.lines):
            text = bare(line)
            for one in {text, assigned(text)} - {b""}:
                found.setdefault(one, []).append(i)
        return found

    def count(self, text: bytes, name: str) -> int:
        """Return how often a bare line, or an assignment's target, occurs directly in a scope."""
        return sum(self.name_at(i) == name for i in self._by_text.get(text, ()))

    def scopes_with(self, text: bytes) -> set[str]:
        """Return the names of the innermost scopes that have a bare line; an empty name is the top level."""
        return {self.name_at(i) for i in self._by_text.get(text, ())}

    def blocks(self, index: int) -> tuple[BlockHead, ...]:
        """Return the heads of the blocks around a line, the innermost first."""
        return blocks_around(self.lines, index, self.path)

    @cached_property
    def has_keys(self) -> bool:
        """Return whether the file is a configuration, where scopes are the only blocks."""
        return self.path.endswith(SUFFIXES)

    def name_at(self, index: int) -> str:
        """Return the qualified name of the innermost scope at a line."""
        around = [scope for scope in self.scopes or () if scope.first <= index + 1 <= scope.last]
        return min(around, key=lambda scope: scope.last - scope.first).name if around else ""


def _mappings(keys: Sequence[KeyPlace], lines: int) -> list[FileScope]:
    """Return the mappings and lists of a configuration; each ends above the next key outside of it."""
    found = []
    for number, key in enumerate(keys):
        if key.opens:
            rest = (other.line - 1 for other in keys[number + 1 :] if other.path[: len(key.path)] != key.path)
            found.append(FileScope(key.line, next(rest, lines), ".".join(key.path)))
    return found


def _below_signatures(lines: Sequence[bytes]) -> list[FileScope]:
    """Return the functions of other languages; each ends above the next line at the margin that looks like one."""
    texts = [(i, line.decode("utf-8", "replace")) for i, line in enumerate(lines, 1)]
    found = [(i, text) for i, text in texts if "(" in text]
    heads = [(i, text.partition("(")[0].strip()) for i, text in found if SIGNATURE.match(text)]
    heads += [(i, shell[1]) for i, text in texts if (shell := _SHELL_FUNCTION.match(text))]
    heads.sort()
    ends = [*(i - 1 for i, _ in heads[1:]), len(lines)]
    return [FileScope(first, last, name) for (first, name), last in zip(heads, ends, strict=False)]


def is_telling(line: bytes) -> bool:
    """Return whether a line identifies its place, unlike blank lines, brackets, `else:` and the like."""
    text = line.decode("utf-8", "replace").strip()
    return len(text) >= _SHORTEST and text not in _FILLER and sum(c.isalnum() for c in text) >= _SHORTEST - 2


def bare(line: bytes) -> bytes:
    """Return a line without its indentation and its trailing comma, which the last of several items may lack."""
    return line.strip().removesuffix(b",")


def assigned(text: bytes) -> bytes:
    """Return the target of a bare line's assignment; empty if it assigns nothing."""
    found = _ASSIGNED.match(text)
    return found[1] + b" =" if found else b""
