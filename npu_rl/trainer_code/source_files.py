"""Selection of the files of a code tree that can be read safely.

A tree may hold anything: opening a pipe would block, and a device may never end.
"""

from __future__ import annotations

import errno
import io
import stat
from collections.abc import Iterable
from pathlib import Path

from npu_rl.bounded import NO_FILE, read_file

_LARGEST = 16 * 1024 * 1024  # the largest of the pinned trees has 0.2 MB


def read_source(path: Path) -> bytes | None:
    """Return the bytes of a regular file of reasonable size; None for anything else. Raises OSError."""
    try:
        return read_file(path, _LARGEST)
    except ValueError:
        return None
    except OSError as error:
        if error.errno in (*NO_FILE, errno.ENAMETOOLONG):
            return None
        raise


def read_source_text(path: Path) -> str | None:
    """Return a file as `read_source` reads it as text, with one kind of line ends. Raises OSError."""
    content = read_source(path)
    return None if content is None else io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace").read()


def source_texts(paths: Iterable[Path]) -> dict[Path, bytes]:
    """Return the bytes of each regular file of reasonable size, sorted by path."""
    texts = ((path, read_source(path)) for path in sorted(paths))
    return {path: text for path, text in texts if text is not None}


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
