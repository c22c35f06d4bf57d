"""Classification of untracked files that are not drift.

What lies beside the locked files can change a run in more ways than can be listed: as a module, a configuration group,
a header, a makefile that make prefers to the locked one, or a table that code finds by a name it puts together. A new
folder is a package, even an empty one. So all of it is drift, except for the names below and for byte code that Python
checks against a source of the tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property

# By pattern, what such a file is; docs/trust.md has the reason for each. Only regular files in folders of the tree.
IGNORED = {
    "*.log": "log",
    "nohup.out": "log",
    "*~": "an editor's backup",
    "#*#": "an editor's backup",
    ".*.sw[a-p]": "an editor's backup",
    ".DS_Store": "a file manager's",
    f".nfs{'[0-9a-f]' * 24}": "removed, but open on another host",
}
# At the top of the tree, with all regular files and folders in them.
IGNORED_FOLDERS = {".idea": "an editor's settings", ".vscode": "an editor's settings"}

_CACHED = r"(?P<module>[^.]+)\..+\.pyc(?P<unfinished>\.[0-9]+)?"  # between: the interpreter, and how it was optimised


class ExpectedTree:
    """Facts about the tree for the classification of untracked files, computed on first use."""

    def __init__(self, expected: Mapping[str, tuple[str, str]]) -> None:
        self.expected = expected

    @cached_property
    def folders(self) -> frozenset[str]:
        """All folders of the tree, including ""."""
        found = {""}
        for path in self.expected:
            while (path := path.rpartition("/")[0]) not in found:
                found.add(path)
        return frozenset(found)

    def is_untracked(self, folder: str) -> bool:
        """Return whether an empty folder is drift.

        It is a namespace package, or in the place of a file that code looks for; transformers takes each folder beside
        its modules for a module (create_import_structure_from_path in utils/import_utils.py@8365f70).
        """
        if folder in self.folders or folder in self.expected:
            return False  # reported as such
        parent, _, name = folder.rpartition("/")
        cache = name == "__pycache__" and parent in self.folders
        return not cache and folder.partition("/")[0] not in IGNORED_FOLDERS


def why_ignored(entry: os.DirEntry[str], path: str, tree: ExpectedTree) -> str | None:
    """Return the kind of an untracked file by its name; None if the file is drift."""
    if not entry.is_file(follow_symlinks=False):
        return None
    folder, _, name = path.rpartition("/")
    if folder.partition("/")[0] in IGNORED_FOLDERS:
        return IGNORED_FOLDERS[folder.partition("/")[0]]
    if folder not in tree.folders:
        return None
    return next((what for pattern, what in IGNORED.items() if fnmatchcase(name, pattern)), None)


def has_byte_code_name(path: str, tree: ExpectedTree) -> bool:
    """Return whether Python would use this file name for the bytecode of a source in this tree."""
    return _byte_code_name(path, tree) is not None


def _byte_code_name(path: str, tree: ExpectedTree) -> re.Match[str] | None:
    folder, _, name = path.rpartition("/")
    package, _, last = folder.rpartition("/")
    match = re.fullmatch(_CACHED, name) if last == "__pycache__" else None
    source = f"{match['module']}.py" if match else ""
    return match if (f"{package}/{source}" if package else source) in tree.expected else None


def is_byte_code(entry: os.DirEntry[str], path: str, tree: ExpectedTree) -> bool:
    """Return whether a file is bytecode that Python checks against a source of this tree (PEP 3147, PEP 552).

    The check is by time and size or by a hash of the source, and does not prove what it was compiled from. Byte code
    with an unchecked hash hides a change of its source.
    """
    match = _byte_code_name(path, tree)
    if match is None or not entry.is_file(follow_symlinks=False):
        return False
    if match["unfinished"]:
        return True  # left by a Python that was killed; it is never read
    try:
        with open(entry.path, "rb") as file:
            head = file.read(16)
    except OSError:
        return False
    return len(head) == 16 and head[4] in (0, 2, 3) and head[5:8] == b"\0\0\0"
