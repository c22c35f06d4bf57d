"""Which names inside an archive may become paths in a tree."""

from __future__ import annotations

import re

_MAX_SEGMENT = 255  # bytes; what Linux and macOS file systems hold
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Characters HFS+ ignores in names: git's own list (utf8.c, next_hfs_char).
_HFS_IGNORES = re.compile(r"[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


class PathLedger:
    """Takes the members of one archive, refuses what is unsafe, and gives paths below the one top folder."""

    def __init__(self) -> None:
        self.top: str | None = None
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def folder(self, name: str) -> None:
        """A folder entry: nothing to keep, but it must be safe and must not be a file too."""
        path = self._below_top(name, top_itself=True)
        if path in self._files:
            raise ValueError("it is a file and a folder")
        self._add_folders(path)

    def file(self, name: str) -> str:
        """The file's path without the top folder. Raises ValueError with the reason if it is refused."""
        path = self._below_top(name, top_itself=False)
        if path in self._files:
            raise ValueError("it is in the archive twice")
        if path in self._folders:
            raise ValueError("it is a file and a folder")
        self._files.add(path)
        self._add_folders(path.rpartition("/")[0])
        return path

    def _below_top(self, name: str, *, top_itself: bool) -> str:
        why = unsafe(name)
        if why:
            raise ValueError(why)
        top, _, path = name.partition("/")
        if not path and not top_itself:
            raise ValueError("it lies outside the one top folder that an sdist has")
        if self.top is None:
            self.top = top
        if top != self.top:
            raise ValueError(f"there is more than one top folder: {shown(self.top)} and {shown(top)}")
        return path

    def _add_folders(self, path: str) -> None:
        while path and path not in self._folders:
            if path in self._files:
                raise ValueError(f"{shown(path)} is a file and a folder")
            self._folders.add(path)
            path = path.rpartition("/")[0]


def unsafe(name: str) -> str | None:
    """Why this member name must not become a path (POSIX, from an archive); None if it may."""
    if not name:
        return "its name is empty"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if _CONTROL.search(name):
        return "its name holds a control character"
    if "\\" in name:
        return "its name holds a backslash"
    if name.startswith("/"):
        return "its path is absolute"
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            return f"its path has the segment {segment!r}"
        if len(segment) * 4 > _MAX_SEGMENT and len(segment.encode("utf-8")) > _MAX_SEGMENT:
            return f"a part of its name is longer than {_MAX_SEGMENT} bytes"
        if _is_dot_git(segment):
            return f"{shown(segment)} is, or passes for, git's own folder"
    return None


def _is_dot_git(segment: str) -> bool:
    """`.git` as some file system may read it: any case, ignored characters (HFS+), trailing dots (NTFS)."""
    plain = segment if segment.isascii() else _HFS_IGNORES.sub("", segment)
    plain = plain.partition(":")[0].rstrip(" .").lower()
    return plain in (".git", "git~1")


def shown(name: str) -> str:
    """The name as plain ASCII, fit for a message."""
    return ascii(name)
