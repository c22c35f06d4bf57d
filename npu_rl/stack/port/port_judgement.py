"""The outcome of porting a patch to another version: the state, place and reason of each hunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HunkFate = Literal["exact", "moved", "merged", "conflict", "already upstream", "target gone"]
UNSOLVED: tuple[HunkFate, ...] = ("conflict", "target gone")


@dataclass(frozen=True)
class LikelyPlace:
    """A place where the code that a hunk changes may be now.

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
    """The outcome for one hunk.

    Attributes:
        number: Its number in the whole patch, from 1; 0 for an empty file, which has no hunk.
        state: `exact`: its old lines are at their line; `moved`: at another line of the same class and function;
            `merged`: the lines that it changes are there, among other lines; `already upstream`: its new lines are at
            the place, and the old ones are not; `target gone`: the file, class or function is missing; `conflict`.
        old_line: Its first line in the old version.
        new_line: Its first line in the new version before the patch; None if it has none.
        inside: The class and function that it changes; empty for none.
        why: A sentence for people; empty for an exact hunk.
        commit: The commit that added the new lines or removed the target; None if it is unknown.
        places: The likely places of a missing target, the most likely first.
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
    """The outcome for one file of a patch.

    Attributes:
        before: The file of the new version before the patch; None if there is none.
        after: The file with the changes that could be ported, and conflict markers for the others; None for no file.
    """

    path: str
    before: bytes | None
    after: bytes | None
    hunks: tuple[PortedHunk, ...]


@dataclass(frozen=True)
class PortedPatch:
    """The outcome for one patch."""

    name: str
    files: tuple[PortedFile, ...]

    @property
    def hunks(self) -> tuple[PortedHunk, ...]:
        """The hunks of all files."""
        return tuple(hunk for file in self.files for hunk in file.hunks)

    @property
    def is_clean(self) -> bool:
        """Return whether it has no conflicts and no missing targets, and so needs no attention."""
        return all(hunk.state not in UNSOLVED for hunk in self.hunks)

    @property
    def is_upstream(self) -> bool:
        """Return whether the new version already has the whole patch."""
        return all(hunk.state == "already upstream" for hunk in self.hunks)


@dataclass(frozen=True)
class MarkerNames:
    """The names on the conflict markers: of the new version, and of the patch."""

    ours: str
    theirs: str


class NewVersion(Protocol):
    """The new version, as the previously ported patches leave it."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if it is missing."""

    def obstacle(self, path: str) -> str:
        """Describe a non-file at a path, or a non-folder at one of its parents; "" without either."""

    def files(self) -> Iterable[str]:
        """Return the path of every file of the tree."""


class History(Protocol):
    """The commits between the two versions. Most methods return a commit id, or None if no commit matches."""

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
