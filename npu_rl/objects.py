"""git's object model in a few lines: what an id is, what a tree and a commit look like.

Ids are computed here and checked by git wherever git writes or reads the object, so a slip in this
file can't go unnoticed. Format: git's Documentation/gitformat-pack and "Git Internals - Git Objects".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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


def parse_tree(data: bytes) -> dict[str, Entry]:
    """Entries of a tree object by name. Names are bytes on disk; odd ones survive as surrogates."""
    entries: dict[str, Entry] = {}
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        null = data.index(b"\0", space)
        mode = data[at:space].decode().lstrip("0")
        name = data[space + 1 : null].decode("utf-8", "surrogateescape")
        entries[name] = Entry(mode, data[null + 1 : null + 21].hex())
        at = null + 21
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
    """Tree objects (id, data) for flat (path, entry) pairs, inner ones first; the last is the root."""
    root: dict[str, object] = {}
    for path, entry in files:
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})  # type: ignore[assignment]
        at[name] = entry

    made: list[tuple[str, bytes]] = []

    def build(node: dict[str, object]) -> Entry:
        entries = {name: build(child) if isinstance(child, dict) else child for name, child in node.items()}
        data = format_tree(entries)  # type: ignore[arg-type]
        oid = object_id("tree", data)
        made.append((oid, data))
        return Entry(TREE, oid)

    build(root)
    yield from made


def format_commit(tree: str, parents: Iterable[str], author: str, seconds: int, message: str) -> bytes:
    """A commit object; author and committer are the same, the zone is UTC."""
    lines = [f"tree {tree}", *(f"parent {p}" for p in parents)]
    lines += [f"author {author} {seconds} +0000", f"committer {author} {seconds} +0000", "", message]
    return "\n".join(lines).encode()


def commit_tree_id(data: bytes) -> str:
    """The root tree a commit object names."""
    if not data.startswith(b"tree "):
        raise ValueError("not a commit object")
    return data[5:45].decode()
