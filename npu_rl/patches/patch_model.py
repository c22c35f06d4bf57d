"""What a parsed patch is: a header, files, hunks, lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Tag = Literal[" ", "-", "+"]


class HunkLine(NamedTuple):
    """One line of a hunk. `text` is raw, without its newline; a file's last line may have none."""

    tag: Tag
    text: bytes
    has_newline: bool

    @property
    def raw(self) -> bytes:
        return self.text + b"\n" if self.has_newline else self.text


class Change(NamedTuple):
    """A run of removed and added lines without context between them.

    `at` counts the old lines of the hunk before it.
    """

    at: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


@dataclass(frozen=True)
class Hunk:
    """One `@@` block. `number` counts from 1 through the whole patch, `line` is where it starts in it."""

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
        """Lines of the old file before the hunk. A side without lines names the line above it."""
        return self.old_start - 1 if self.old_count else self.old_start

    @property
    def new_index(self) -> int:
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
        """Without context after its last change a hunk only fits the end of a file, as for `git apply`."""
        return self.lines[-1].tag != " "

    def changes(self) -> Iterator[Change]:
        """Each change of the hunk, top-down."""
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
    """What a patch does to one file. Paths are targets: after `strip` and `directory`.

    old_path: None for a new file. new_path: None for a deleted one.
    new_mode: "100644" or "100755" for a new file or a changed mode, else None.
    line: of its first header line in the patch file.
    """

    path: str
    old_path: str | None
    new_path: str | None
    new_mode: str | None
    hunks: tuple[Hunk, ...]
    line: int


@dataclass(frozen=True)
class Patch:
    """A whole patch. `header` is the text before the first diff; `excluded` the paths left out on request."""

    name: str
    sha256: str
    header: str
    files: tuple[FilePatch, ...]
    excluded: tuple[str, ...] = ()

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        return tuple(hunk for file in self.files for hunk in file.hunks)
