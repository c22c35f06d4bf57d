"""Git's object model: ids, trees and commits as bytes.

git checks the ids computed here wherever it reads or writes the objects, so a bug in this module shows at once.
Format: git's Documentation/gitformat-pack and "Git Internals - Git Objects".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.text_checks import MAXIMUM_DEPTH

TREE = "40000"
FILE = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"
GITLINK = "160000"

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def object_id(kind: str, data: bytes) -> str:
    """Return the id of an object: SHA-1 over its type, length and content."""
    digest = hashlib.sha1(f"{kind} {len(data)}\0".encode(), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def short(oid: str) -> str:
    """An id, abbreviated for a person."""
    return oid[:12]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree: a mode (git's octal text) and an object id."""

    mode: str
    oid: str

    @property
    def is_tree(self) -> bool:
        """Return whether the entry is a folder."""
        return self.mode == TREE


class MalformedObject(NpuRlError):
    """An object that matches its id but that git would not have written."""


def parse_tree(data: bytes) -> dict[str, Entry]:
    """Return the entries of a tree object by name; bytes that are not UTF-8 become surrogates.

    Raises:
        MalformedObject: For data that is truncated or lists a name twice, which two readers could read
            differently.
    """
    entries: dict[str, Entry] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at)
        null = data.find(b"\0", space)
        end = null + 21
        if space < 0 or null < 0 or end > len(data):
            raise MalformedObject("A tree object is truncated")
        name = data[space + 1 : null].decode("utf-8", "surrogateescape")
        if not name or name in entries:
            raise MalformedObject(
                f"A tree object lists {name!r} twice" if name else "A tree object has an entry without a name"
            )
        mode = data[at:space].decode("ascii", "replace").lstrip("0")
        entries[name] = Entry(mode, data[null + 1 : end].hex())
        at = end
    return entries


def format_tree(entries: Mapping[str, Entry]) -> bytes:
    """Return the tree object of entries, in git's order (a folder sorts as if its name ended in a slash)."""

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


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of these paths, or below one; "." is the root."""
    return any(folder == "." or path == folder or path.startswith(f"{folder}/") for folder in folders)


def check_depth(path: str) -> None:
    """Raise MalformedObject for a path that is nested more than MAXIMUM_DEPTH folders deep."""
    if path.count("/") > MAXIMUM_DEPTH:
        raise MalformedObject(f"A tree is more than {MAXIMUM_DEPTH} folders deep", why=f"{path[:80]}…")


def nested(files: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, bytes]]:
    """Yield the tree objects (id, data) of flat (path, entry) pairs, inner ones first; the last is the root.

    Raises:
        MalformedObject: If a path is listed twice, is both a file and a folder, or is too deep.
    """
    root: _Folder = {}
    for path, entry in files:
        check_depth(path)
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            below = at.setdefault(folder, {})
            if isinstance(below, Entry):
                raise MalformedObject(f"A tree has both a file and a folder named {folder!r}", why=path)
            at = below
        if name in at:
            raise MalformedObject("A tree lists a path twice", why=path)
        at[name] = entry
    trees: list[tuple[str, bytes]] = []
    _build(root, trees)
    yield from trees


_Folder = dict[str, "Entry | _Folder"]


def _build(folder: _Folder, trees: list[tuple[str, bytes]]) -> Entry:
    """Append the folder's tree object, after those of its subfolders."""
    entries = {n: e if isinstance(e, Entry) else _build(e, trees) for n, e in folder.items()}
    data = format_tree(entries)
    trees.append((object_id("tree", data), data))
    return Entry(TREE, trees[-1][0])


def format_commit(tree: str, parents: Iterable[str], author: str, seconds: int, message: str) -> bytes:
    """Return a commit object whose author and committer are the same, in UTC."""
    lines = [f"tree {tree}", *(f"parent {p}" for p in parents)]
    lines += [f"author {author} {seconds} +0000", f"committer {author} {seconds} +0000", "", message]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def commit_tree_id(data: bytes) -> str:
    """Return the id of a commit object's root tree. Raises MalformedObject."""
    if not re.match(rb"tree [0-9a-f]{40}\n", data):
        raise MalformedObject("A commit object names no tree")
    return data[5:45].decode()
