"""Names that can be checked out on every file system, and how deep they may be nested."""

from __future__ import annotations

import re

MAXIMUM_DEPTH = (
    200  # folders above a file; real trees have a dozen, and 2,000 fill the longest path Linux takes
)
_MAXIMUM_NAME = 255  # bytes; what Linux and macOS file systems hold

# Characters HFS+ ignores in names: git's own list (utf8.c, next_hfs_char).
_HFS_IGNORES = re.compile(r"[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def invalid_name_reason(name: str) -> str | None:
    """Return why a name can't be checked out on every file system; None if it can."""
    if not name or name in (".", ".."):
        return f"a path component is '{name}'"
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return "a path component is not valid text"
    if size > _MAXIMUM_NAME:
        return f"a path component is longer than {_MAXIMUM_NAME} bytes"
    if is_dot_git(name):
        return f"{name!a} is git's own folder on some file systems"
    return None


def is_dot_git(name: str) -> bool:
    """Return whether some file system reads the name as `.git`.

    That is: any case, characters that HFS+ ignores, and on NTFS trailing dots and spaces, streams, backslashes and the
    short name.
    """
    plain = name if name.isascii() else _HFS_IGNORES.sub("", name)
    plain = re.split(r"[:\\]", plain, maxsplit=1)[0].rstrip(" .").lower()
    return plain in (".git", "git~1")
