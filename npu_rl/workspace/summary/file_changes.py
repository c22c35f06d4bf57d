"""The files that one step changes: definitions of Python files, and line counts of other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import GITLINK, SYMLINK
from npu_rl.workspace.summary.compare import DefinitionChange, compare

_STATES = {"A": "added", "D": "removed", "M": "changed", "T": "changed"}
_ABSENT = "000000"

ReadBlob = Callable[[str], bytes]


@dataclass(frozen=True)
class FileChange:
    """One file of one step.

    Attributes:
        path: In the component; of a patch of the tree, in the code tree.
        state: "added", "removed" or "changed".
        definitions: Its changes in Python's terms; None for a file that is not Python.
        note: What else is to say: lines added and removed, a new mode, why there are no definitions.
    """

    path: str
    state: str
    definitions: tuple[DefinitionChange, ...] | None
    note: str = ""


@dataclass(frozen=True)
class _RawEntry:
    modes: tuple[str, str]
    ids: tuple[str, str]
    state: str


def file_changes(repository: Git, read: ReadBlob, before: str, after: str) -> Iterator[FileChange]:
    """Yield the files that differ between two trees, by path. Raises GitError for missing objects."""
    entries, lines = _difference(repository, before, after)
    for path, entry in entries.items():
        yield _file_change(path, entry, lines.get(path, ""), read)


def _difference(repository: Git, before: str, after: str) -> tuple[dict[str, _RawEntry], dict[str, str]]:
    """Return the raw entry and the "+added -removed" lines of each path."""
    fields = repository.run(
        "diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--raw", "--numstat", before, after
    ).stdout.decode("utf-8", "surrogateescape").split("\0")  # fmt: skip
    entries: dict[str, _RawEntry] = {}
    lines: dict[str, str] = {}
    words = iter(fields)
    for word in words:
        if word.startswith(":"):
            old_mode, new_mode, old_id, new_id, state = word[1:].split(" ")
            entries[next(words)] = _RawEntry((old_mode, new_mode), (old_id, new_id), _STATES[state[0]])
        elif word:
            added, removed, path = word.split("\t", 2)
            lines[path] = "binary" if added == "-" else f"+{added} -{removed} lines"
    return entries, lines


def _file_change(path: str, entry: _RawEntry, lines: str, read: ReadBlob) -> FileChange:
    old_mode, new_mode = entry.modes
    special = next((mode for mode in entry.modes if mode in (SYMLINK, GITLINK)), None)
    if special is not None:
        kind = "a symbolic link" if special == SYMLINK else "a submodule"
        return FileChange(path, entry.state, None, f"{kind}, {lines}" if lines else kind)
    moded = f"mode {old_mode} -> {new_mode}" if _ABSENT not in entry.modes and old_mode != new_mode else ""
    if not path.endswith(".py"):
        return FileChange(path, entry.state, None, _joined(lines, moded))
    versions = [
        b"" if mode == _ABSENT else read(oid) for mode, oid in zip(entry.modes, entry.ids, strict=True)
    ]
    changes = compare(versions[0], versions[1])
    if changes is None:
        return FileChange(path, entry.state, None, _joined(lines, moded, "can't be parsed as Python"))
    quiet = "comments and layout only" if not changes and versions[0] != versions[1] and lines else ""
    return FileChange(path, entry.state, tuple(changes), _joined(lines, moded, quiet))


def _joined(*notes: str) -> str:
    return ", ".join(note for note in notes if note)
