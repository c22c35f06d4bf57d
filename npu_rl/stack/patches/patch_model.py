"""The parts of a parsed patch: header, files, hunks, lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Tag = Literal[" ", "-", "+"]


class HunkLine(NamedTuple):
    """One line of a hunk.

    Attributes:
        tag: Whether it is context, removed or added.
        text: The line without its newline.
        has_newline: False for the last line of a file that ends without one.
    """

    tag: Tag
    text: bytes
    has_newline: bool

    @property
    def raw(self) -> bytes:
        """The line with its newline, if it has one."""
        return self.text + b"\n" if self.has_newline else self.text


class Change(NamedTuple):
    """A run of removed and added lines without context between them.

    Attributes:
        at: The number of old lines of the hunk before it.
        removed: The removed lines, line ends included.
        added: The added lines, line ends included.
    """

    at: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


@dataclass(frozen=True)
class Hunk:
    """One `@@` block.

    Attributes:
        number: Its number in the whole patch, from 1.
        line: The line where it starts in the patch.
        section: The heading after the second `@@`.
    """

    number: int
    line: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: str
    lines: tuple[HunkLine, ...]

    @property
    def old_index(self) -> int:
        """The lines of the old file before the hunk. A side without lines names the line above it."""
        return self.old_start - 1 if self.old_count else self.old_start

    @property
    def new_index(self) -> int:
        """The lines of the new file before the hunk."""
        return self.new_start - 1 if self.new_count else self.new_start

    @property
    def old_lines(self) -> list[bytes]:
        """The preimage, line ends included."""
        return [line.raw for line in self.lines if line.tag != "+"]

    @property
    def new_lines(self) -> list[bytes]:
        """The postimage, line ends included."""
        return [line.raw for line in self.lines if line.tag != "-"]

    @property
    def ends_the_file(self) -> bool:
        """Return whether it only fits the end of a file: without context after its last change, as for `git apply`."""
        return self.lines[-1].tag != " "

    def changes(self) -> Iterator[Change]:
        """Yield each change of the hunk, top-down."""
        at = 0
        removed: list[bytes] = []
        added: list[bytes] = []
        for line in self.lines:
            if line.tag == " ":
                if removed or added:
                    yield Change(at, tuple(removed), tuple(added))
                    at += len(removed)
                    removed, added = [], []
                at += 1
            elif line.tag == "-":
                removed.append(line.raw)
            else:
                added.append(line.raw)
        if removed or added:
            yield Change(at, tuple(removed), tuple(added))


@dataclass(frozen=True)
class FilePatch:
    """The changes of a patch to one file. Paths are targets: after `strip` and `directory`.

    Attributes:
        path: The path.
        old_path: The path, or None for a new file.
        new_path: The path, or None for a deleted file.
        hunks: Its hunks.
        line: The line of its first header line in the patch.
        ids: The blob ids of its `index` line, before and after, which may be abbreviated; None without one.
    """

    path: str
    old_path: str | None
    new_path: str | None
    hunks: tuple[Hunk, ...]
    line: int
    ids: tuple[str, str] | None = None


@dataclass(frozen=True)
class Patch:
    """A whole patch.

    Attributes:
        name: Its name, for messages.
        sha256: The digest of its bytes.
        header: The text before the first diff.
        files: The changed files.
    """

    name: str
    sha256: str
    header: str
    files: tuple[FilePatch, ...]

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """The hunks of all files."""
        return tuple(hunk for file in self.files for hunk in file.hunks)
