"""Validation of an archive's member names as paths of a tree."""

from __future__ import annotations

import re

from npu_rl.common.portable_names import MAXIMUM_DEPTH, invalid_name_reason

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class PathLedger:
    """The members of one archive: rejects unsafe names and returns paths below the single top folder."""

    def __init__(self) -> None:
        self.top: str | None = None
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def folder(self, name: str) -> None:
        """Add a folder entry. Raises ValueError with the reason if it is unsafe or also a file."""
        path = self._below_top(name, top_itself=True)
        if path in self._files:
            raise ValueError("it is both a file and a folder")
        self._add_folders(path)

    def file(self, name: str) -> str:
        """Add a file and return its path without the top folder. Raises ValueError with the reason if it is unsafe."""
        path = self._below_top(name, top_itself=False)
        if path in self._files:
            raise ValueError("it is in the archive twice")
        if path in self._folders:
            raise ValueError("it is both a file and a folder")
        self._files.add(path)
        self._add_folders(path.rpartition("/")[0])
        return path

    def _below_top(self, name: str, *, top_itself: bool) -> str:
        why = unsafe_reason(name)
        if why:
            raise ValueError(why)
        top, _, path = name.partition("/")
        if not path and not top_itself:
            raise ValueError("it is outside the top folder of the sdist")
        if self.top is None:
            self.top = top
        if top != self.top:
            raise ValueError(f"there is more than one top folder: {shown(self.top)} and {shown(top)}")
        return path

    def _add_folders(self, path: str) -> None:
        while path and path not in self._folders:
            if path in self._files:
                raise ValueError(f"{shown(path)} is both a file and a folder")
            self._folders.add(path)
            path = path.rpartition("/")[0]


def unsafe_reason(name: str) -> str | None:
    """Return why a member name must not become a path; None if it may."""
    if not name:
        return "its name is empty"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if _CONTROL.search(name):
        return "its name contains a control character"
    if "\\" in name:
        return "its name contains a backslash"
    if name.startswith("/"):
        return "its path is absolute"
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            return f"its path has the component {segment!r}"
        if why := invalid_name_reason(segment):
            return why
    if name.count("/") > MAXIMUM_DEPTH:
        return f"its path is more than {MAXIMUM_DEPTH} folders deep"
    return None


def shown(name: str) -> str:
    """Return the name as plain ASCII for a message."""
    return ascii(name)
