"""Which files and empty folders beside the locked ones affect what Python runs or reads.

Drift are modules, extensions, packages (an empty folder is one), what importlib.metadata and pkg_resources find, byte
code that Python uses without its source, and data next to data files of the tree, which code may select by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property

# Of importlib.machinery.all_suffixes() on Linux, macOS and Windows; a tag such as .cpython-311-x stands before.
_IMPORTABLE = (".py", ".pyc", ".so", ".pyd", ".dylib", ".pth")
# What importlib.metadata looks for at the top of a path, in any case, and what pkg_resources does besides.
_METADATA = (".dist-info", ".egg-info", ".egg", ".egg-link")
_CACHED = r"(?P<module>[^.]+)\..+\.pyc(?P<unfinished>\.[0-9]+)?"  # between: the interpreter, and how it was optimised


class ExpectedTree:
    """Facts about the tree with which untracked files are classified, computed on first use."""

    def __init__(self, expected: Mapping[str, tuple[str, str]], on_path: bool) -> None:
        self.expected = expected
        self.on_path = on_path

    @cached_property
    def folders(self) -> frozenset[str]:
        """All folders of the tree, "" included."""
        found = {""}
        for path in self.expected:
            while (path := path.rpartition("/")[0]) not in found:
                found.add(path)
        return frozenset(found)

    @cached_property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """(folder, suffix) of each file of the tree."""
        named = (path.rpartition("/") for path in self.expected)
        return frozenset((folder, _suffix(name)) for folder, _, name in named)

    def is_stray_package(self, folder: str) -> bool:
        """Return whether an empty folder can be imported as a namespace package."""
        parent, _, name = folder.rpartition("/")
        if name == "__pycache__":
            return parent not in self.folders and self.is_stray_package(parent)
        if _is_metadata(folder):
            return True
        names = folder.split("/")
        ours = folder in self.folders or folder in self.expected  # reported as such
        return self.on_path and not ours and all(name.isidentifier() for name in names)


def is_product(entry: os.DirEntry[str], path: str, tree: ExpectedTree) -> bool:
    """Return whether an untracked file affects neither what Python finds nor what code selects in this tree."""
    if _is_metadata(path):
        return False  # its version and entry points would be found
    if entry.is_symlink() and not os.path.isfile(entry.path):
        return False  # to a folder, it is a package; to nothing, it may become one
    folder, _, name = path.rpartition("/")
    if name.lower().endswith(_IMPORTABLE) or folder.endswith("__pycache__"):
        return False  # Numba keeps machine code in a cache, too
    # Hydra's configuration groups, vLLM's tables of tuned kernels: read by a name that is put together.
    return not (tree.on_path and _suffix(name) and (folder, _suffix(name)) in tree.kinds)


def is_byte_code(entry: os.DirEntry[str], path: str, tree: ExpectedTree) -> bool:
    """Return whether a file is byte code that Python checks against a source of this tree (PEP 3147, PEP 552).

    The check is by time and size or by a hash of the source, and does not prove what it was compiled from. Byte code
    with an unchecked hash hides a change of its source.
    """
    if "__pycache__/" not in path or _is_metadata(path):
        return False
    folder, _, name = path.rpartition("/")
    package, _, last = folder.rpartition("/")
    match = re.fullmatch(_CACHED, name)
    if last != "__pycache__" or match is None or not entry.is_file(follow_symlinks=False):
        return False
    source = f"{match['module']}.py"
    if (f"{package}/{source}" if package else source) not in tree.expected:
        return False
    if match["unfinished"]:
        return True  # left by a Python that was killed; it is never read
    try:
        with open(entry.path, "rb") as file:
            head = file.read(16)
    except OSError:
        return False
    return len(head) == 16 and head[4] in (0, 2, 3) and head[5:8] == b"\0\0\0"


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""


def _is_metadata(path: str) -> bool:
    return path.partition("/")[0].lower().endswith(_METADATA)
