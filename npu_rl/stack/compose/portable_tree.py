"""Checks of a composed tree: the same files on every file system, and content rather than references to it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from npu_rl.common.errors import ComposeError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import SYMLINK

_REMOVE = "Do not take that path, or delete it with a patch."
# The names of the format and the line ends that git-lfs takes (lfs/pointer.go@001ddcd:v1Aliases, DecodeFrom).
_LFS = re.compile(
    rb"\s*version (?:https://git-lfs\.github\.com/spec/v1|https://hawser\.github\.com/spec/v1|http://git-media\.io/v/2)\r?\n"
)
_LFS_SIZES = range(100, 1024)  # bytes of a pointer file; the specification allows less than 1,024
_SHOWN = 5
_STARTED_BY_PYTHON = ("sitecustomize", "usercustomize")
# Names in `sys.modules` of `python -I` (CPython 3.10.13, 3.12.1) that are not built in; newer ones freeze some.
_IMPORTED_AT_START = (
    *("_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath", "io", "os"),
    *("posixpath", "site", "stat", "zipimport"),
)
_MODULES = (".py", ".pyc", ".so")


def check_collisions(paths: Iterable[str], what: str) -> None:
    """Raise ComposeError for two paths that differ only in case or Unicode normalization."""
    folded: dict[str, str] = {}
    known: dict[str, str] = {"": ""}  # by folded path
    folders = {"": ""}  # folded, by path
    for path in paths:
        at, parent = "", ""
        for name in path.split("/"):
            at = f"{at}/{name}" if at else name
            key = folders.get(at)
            if key is None:
                if name not in folded:
                    folded[name] = name.lower() if name.isascii() else _fold(name)
                key = folders[at] = f"{parent}/{folded[name]}"
                first = known.setdefault(key, at)
                if first != at:
                    raise ComposeError(
                        f"{what} has two paths that collide on some file systems",
                        where=f"{first!a} and {at!a}",
                        why="They differ in case or Unicode normalization only: macOS and Windows keep one.",
                        hint=_REMOVE,
                    )
            parent = key


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def check_started_by_python(paths: Iterable[str]) -> None:
    """Raise ComposeError for a file at the code tree's root that Python runs whenever it starts."""
    for path in paths:
        root, _, below = path.partition("/")
        name = root.split(".")[0].lower()
        shadows = name in _IMPORTED_AT_START and _is_module(root, below)
        if shadows or name in _STARTED_BY_PYTHON or (not below and root.lower().endswith(".pth")):
            raise ComposeError(
                "The code tree has a file that Python runs at start-up",
                where=path,
                why=f"code/ is on PYTHONPATH, and {root} at its root would run in every Python that starts there.",
                hint=_REMOVE,
            )


def _is_module(root: str, below: str) -> bool:
    """Return whether a path turns its root into a module: a folder `site` without `__init__` shadows nothing."""
    if below:
        return below.startswith("__init__.")
    return "." not in root or root.endswith(_MODULES)  # without a dot it may be a link to a folder


def check_pointers(
    trees: Trees,
    files: Iterable[tuple[str, str, str]],
    what: str,
    notify: Callable[[str], None] | None = None,
) -> None:
    """Raise ComposeError for Git LFS pointers in place of a file's content.

    Args:
        trees: The objects.
        files: Path, mode and id of each file.
        what: The tree, for messages.
        notify: Takes the message in place of an error.
    """
    paths = {oid: path for path, mode, oid in files if mode != SYMLINK}
    sizes = trees.sizes(paths)
    pointers = [oid for oid, size in sizes.items() if size in _LFS_SIZES and _LFS.match(trees.blob(oid))]
    if not pointers:
        return
    names = sorted(path for path, mode, oid in files if oid in pointers and mode != SYMLINK)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    message, listed = f"{what} has Git LFS pointers in place of files", ", ".join(names[:_SHOWN]) + more
    if notify is not None:
        notify(f"{message}: {listed}")
        return
    raise ComposeError(
        message,
        where=listed,
        why="Their content is on an LFS server, which npu-rl does not use: a pointer has only hash and size.",
        hint=_REMOVE,
    )
