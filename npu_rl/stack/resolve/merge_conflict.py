"""Explanation of a merge that conflicts: a stacked pull request, a rival, or the pin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from npu_rl.common.errors import LockError
from npu_rl.common.printable import counted
from npu_rl.stack.git.objects import short


class MergeConflict(LockError):
    """A merge with conflicts; `files` has the lines of each file, before the merge, that are in conflict."""

    def __init__(self, what: str, messages: Sequence[str], files: Mapping[str, Sequence[str]]) -> None:
        super().__init__(
            f"{what} has conflicts in {counted(len(files), 'file')}",
            why="\n".join(messages),
            hint="Resolve the conflicts by hand and add the result as a patch, or choose another pin.",
        )
        self.files = files


@dataclass(frozen=True)
class MergedRequest:
    """A pull request as far as a conflict is about it.

    Attributes:
        commits: Its own commits, "id subject".
        count: Their number, which may be greater than that of `commits`.
        paths: The taken paths that it changes.
    """

    ref: str
    head: str
    commits: Sequence[str]
    count: int
    paths: Sequence[str]

    def contains(self, other: MergedRequest) -> bool:
        """Return whether the other's head is one of its own commits."""
        return short(other.head) in {line.partition(" ")[0] for line in self.commits}


def explained(
    conflict: MergeConflict, request: MergedRequest, earlier: Sequence[MergedRequest], *, fits_alone: bool
) -> LockError:
    """Return the error of a conflict, with the other request that it is due to.

    Args:
        earlier: The requests that were merged before.
        fits_alone: Whether the request merges without conflicts if none of these was merged.
    """
    for other in earlier:
        for outer, inner in ((request, other), (other, request)):
            if outer.contains(inner):
                of_inner = "commit" if inner.count == 1 else f"{inner.count} commits"
                return LockError(
                    conflict.what,
                    why=f"{outer.ref} contains the {of_inner} of {inner.ref}: they would be applied twice.",
                    hint=f"Take {outer.ref} alone, or list {inner.ref} before it and give {outer.ref} "
                    f"`base: {inner.ref}`.",
                )
    lines = list(_lines(conflict, request, earlier if fits_alone else ()))
    return LockError(conflict.what, why="\n".join([conflict.why or "", *lines]).strip(), hint=conflict.hint)


def _lines(
    conflict: MergeConflict, request: MergedRequest, earlier: Sequence[MergedRequest]
) -> Iterator[str]:
    for path, places in conflict.files.items():
        rivals = [other.ref for other in earlier if path in other.paths] or ["the pin"]
        at = f", line {', '.join(places)}" if places else ""
        yield f"{path}{at}: {request.ref} conflicts with {' and '.join(rivals)}"


def conflicting_lines(marked: bytes) -> tuple[str, ...]:
    """Return the lines, before the merge, of each conflict in a file with git's markers: "20" or "20-24"."""
    found: list[str] = []
    line, first, theirs = 0, 0, False
    for text in marked.split(b"\n"):
        if text.startswith(b"<<<<<<< "):
            first = line + 1
        elif first and text == b"=======":
            theirs = True
        elif first and text.startswith(b">>>>>>> "):
            found.append(f"{first}-{line}" if line > first else f"{first}")
            first, theirs = 0, False
        elif not theirs:
            line += 1
    return tuple(found)
