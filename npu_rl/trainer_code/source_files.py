"""Selection of the files of a code tree that can be read safely.

A tree may hold anything: opening a pipe would block, and a device may never end.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

_LARGEST = 16 * 1024 * 1024  # the largest of the pinned trees has 0.2 MB


def source_files(paths: Iterable[Path]) -> list[Path]:
    """Return the regular files of reasonable size, sorted."""
    return sorted(path for path in paths if is_source(path))


def is_source(path: Path) -> bool:
    """Return whether a path is a regular file of reasonable size."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
