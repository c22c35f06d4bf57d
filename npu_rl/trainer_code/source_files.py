"""The files of a code tree, which may be anybody's: to open a pipe would wait, to read a device never end."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

_LARGEST = 16 * 1024 * 1024  # the largest of the pinned trees has 0.2 MB


def source_files(paths: Iterable[Path]) -> list[Path]:
    """Those that are files one can read, sorted."""
    return sorted(path for path in paths if is_source(path))


def is_source(path: Path) -> bool:
    """Whether it is a file of a size that a person or a generator writes."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
