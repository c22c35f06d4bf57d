"""git's object model in a few lines: what an id is, what a tree and a commit look like.

Ids are computed here and checked by git wherever git writes or reads the object, so a slip in this
file can't go unnoticed. Format: git's Documentation/gitformat-pack and "Git Internals - Git Objects".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from npu_rl.errors import NpuRlError

TREE = "40000"
FILE = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"
GITLINK = "160000"

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def object_id(kind: str, data: bytes) -> str:
    """The id of an object: SHA-1 over its kind, length and content. Identity, not secrecy."""
    digest = hashlib.sha1(f"{kind} {len(data)}\0".encode(), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a tree: a mode (git's octal text) and an object id."""

    mode: str
    oid: str

    @property
    def is_tree(self) -> bool:
        return self.mode == TREE


class MalformedObject(NpuRlError):
    """An object that hashes to its id, and still is not what git would have written."""


def parse_tree(data: bytes) -> dict[str, Entry]:
    """Entries of a tree object by name. Names are bytes on disk; odd ones survive as surrogates.

    Raises MalformedObject for data that is cut off or names something twice: two readers could see
    two different trees in it.
    """
    entries: dict[str, Entry] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at)
        null = data.find(b"\0", space)
        end = null + 21
        if space < 0 or null < 0 or end > len(data):
            raise MalformedObject("A tree object is cut off")
        name = data[space + 1 : null].decode("utf-8", "surrogateescape")
        if not name or name in entries:
            raise MalformedObject(
                f"A tree object has {name!r} twice" if name else "A tree has a nameless entry"
            )
        mode = data[at:space].decode("ascii", "replace").lstrip("0")
        entries[name] = Entry(mode, data[null + 1 : end].hex())
        at = end
    return entries


def format_tree(entries: Mapping[str, Entry]) -> bytes:
    """The inverse of `parse_tree`, in git's order (a folder sorts as if its name ended in a slash)."""

    def key(item: tuple[str, Entry]) -> bytes:
        name, entry = item
        return name.encode("utf-8", "surrogateescape") + (b"/" if entry.is_tree else b"")

    return b"".join(
        entry.mode.encode()
        + b" "
        + name.encode("utf-8", "surrogateescape")
        + b"\0"
        + bytes.fromhex(entry.oid)
        for name, entry in sorted(entries.items(), key=key)
    )


def nested(files: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, bytes]]:
    """Tree objects (id, data) for flat (path, entry) pairs, inner ones first; the last is the root.

    Raises ValueError if a path is there twice, or is a file and a folder.
    """
    root: _Folder = {}
    for path, entry in files:
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            below = at.setdefault(folder, {})
            if isinstance(below, Entry):
                raise ValueError(f"{path} needs a folder where a file is")
            at = below
        if name in at:
            raise ValueError(f"{path} is there twice")
        at[name] = entry
    made: list[tuple[str, bytes]] = []
    _build(root, made)
    yield from made


_Folder = dict[str, "Entry | _Folder"]


def _build(folder: _Folder, made: list[tuple[str, bytes]]) -> Entry:
    """Append the folder's tree object, and before it those below."""
    entries = {n: e if isinstance(e, Entry) else _build(e, made) for n, e in folder.items()}
    data = format_tree(entries)
    made.append((object_id("tree", data), data))
    return Entry(TREE, made[-1][0])


def format_commit(tree: str, parents: Iterable[str], author: str, seconds: int, message: str) -> bytes:
    """A commit object; author and committer are the same, the zone is UTC."""
    lines = [f"tree {tree}", *(f"parent {p}" for p in parents)]
    lines += [f"author {author} {seconds} +0000", f"committer {author} {seconds} +0000", "", message]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def commit_tree_id(data: bytes) -> str:
    """The root tree a commit object names."""
    if not data.startswith(b"tree "):
        raise ValueError("not a commit object")
    return data[5:45].decode()
