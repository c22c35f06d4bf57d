"""Selection of the files of a code tree that can be read safely.

A tree may hold anything: opening a pipe would block, and a device may never end.
"""

from __future__ import annotations

import errno
import io
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import AnyStr

from npu_rl.common.bounded import NO_FILE, read_file
from npu_rl.common.errors import WorkspaceError

_LARGEST = 2 << 20  # bytes; the largest of the pinned trees has 0.33 MB
_LARGEST_SUM = 256 << 20  # bytes that are held at once; the largest pinned tree has 78 MB of Python


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
    """Return a file read by `read_source` as text, with uniform line ends. Raises OSError."""
    content = read_source(path)
    return None if content is None else io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace").read()


def source_texts(paths: Iterable[Path]) -> dict[Path, bytes]:
    """Return the bytes of each regular file of reasonable size, sorted by path.

    Raises WorkspaceError where they are more than a tree of code has.
    """
    texts: dict[Path, bytes] = {}
    left = _LARGEST_SUM
    for path in sorted(paths):
        text = read_source(path)
        if text is not None:
            left -= len(text)
            texts[path] = text
        if left < 0:
            raise too_much_code(path, f"The files up to this one have more than {_LARGEST_SUM >> 20} MiB.")
    return texts


def too_much_code(where: Path, why: str) -> WorkspaceError:
    """Return the error for a tree that is larger than any supported stack."""
    return WorkspaceError(
        "The code folder has too much Python to be judged",
        where=str(where),
        why=why,
        hint="npu-rl verify --deep lists the files that are not in the lock.",
    )


def line_numbers(text: AnyStr, places: Iterable[int]) -> Iterator[int]:
    """Yield the line number of each offset. Offsets must be in ascending order."""
    end, done, line = ("\n" if isinstance(text, str) else b"\n"), 0, 1
    for place in places:
        line += text.count(end, done, place)
        done = place
        yield line


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
