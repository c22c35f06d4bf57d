"""The fate of a patch in another version: the state, place and reason of each hunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HunkFate = Literal["exact", "moved", "merged", "conflict", "already upstream", "target gone"]
UNSOLVED: tuple[HunkFate, ...] = ("conflict", "target gone")


@dataclass(frozen=True)
class LikelyPlace:
    """A place where what a hunk changes may be now.

    Attributes:
        line: From 1.
        inside: The class and function at that line; empty for none.
        score: How much of the hunk was found there, 0 to 1.
        context: Some lines from there on.
    """

    path: str
    line: int
    inside: str
    score: float
    context: str


@dataclass(frozen=True)
class PortedHunk:
    """The fate of one hunk.

    Attributes:
        number: Its number in the whole patch, from 1; 0 stands for an empty file, which has no hunk.
        state: `exact`: its old lines stand at their line; `moved`: at another line of the same class and function;
            `merged`: what it changes stands there, among other lines; `already upstream`: its new lines stand at the
            place, and the old ones do not; `target gone`: the file, or the class or function, is not there; `conflict`.
        old_line: Its first line in the old version.
        new_line: Its first line in the new version before the patch; None if it has none.
        inside: The class and function that it changes; empty for none.
        why: A sentence for people; empty for an exact hunk.
        commit: The commit that brought the new lines, or took the target away; None if it is not known.
        places: Where a target may be that is gone, the most likely first.
    """

    path: str
    number: int
    state: HunkFate
    old_line: int
    new_line: int | None
    inside: str = ""
    why: str = ""
    commit: str | None = None
    places: tuple[LikelyPlace, ...] = ()


@dataclass(frozen=True)
class PortedFile:
    """The fate of one file of a patch.

    Attributes:
        before: The file of the new version before the patch; None if there is none.
        after: The file with what could be carried over, and conflict markers for what could not; None for no file.
    """

    path: str
    before: bytes | None
    after: bytes | None
    hunks: tuple[PortedHunk, ...]


@dataclass(frozen=True)
class PortedPatch:
    """The fate of a patch."""

    name: str
    files: tuple[PortedFile, ...]

    @property
    def hunks(self) -> tuple[PortedHunk, ...]:
        """The hunks of all files."""
        return tuple(hunk for file in self.files for hunk in file.hunks)

    @property
    def is_clean(self) -> bool:
        """Whether no person has to look at it: without conflicts and missing targets."""
        return all(hunk.state not in UNSOLVED for hunk in self.hunks)

    @property
    def is_upstream(self) -> bool:
        """Whether the new version has all of it."""
        return all(hunk.state == "already upstream" for hunk in self.hunks)


@dataclass(frozen=True)
class MarkerNames:
    """The names behind the conflict markers: of the new version, and of the patch."""

    ours: str
    theirs: str


class NewVersion(Protocol):
    """The new version, as the patches that were ported before have left it."""

    def read(self, path: str) -> bytes | None:
        """Return a file; None if it is missing."""

    def obstacle(self, path: str) -> str:
        """Return what is at a path that is not a file, or at a folder of it; "" for nothing."""

    def files(self) -> Iterable[str]:
        """Return the path of every file of the tree."""


class History(Protocol):
    """The commits between the two versions. Each answer is a commit id, or None if no commit of them is it."""

    def deleted(self, path: str) -> str | None:
        """Return the commit that deleted or renamed a file."""

    def renamed(self, path: str) -> str | None:
        """Return the path that a file was renamed to."""

    def added(
        self, path: str, new_lines: Sequence[bytes], old_lines: Sequence[bytes], inside: str | None = None
    ) -> str | None:
        """Return the first commit after which a file has the new lines and lacks the old ones.

        Args:
            inside: The class and function that the lines are directly in; None for anywhere in the file.
        """

    def lost(self, path: str, lines: Sequence[bytes], inside: str | None = None) -> str | None:
        """Return the first commit after which a file, or a class or function of it, lacks the lines."""
