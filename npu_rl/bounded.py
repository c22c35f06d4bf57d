"""Bounded reading of untrusted files and JSON.

A FIFO or device is an error, not waited for. Every kind of damage raises OSError or ValueError: json itself raises
RecursionError for deep nesting, and MemoryError for a million empty lists.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

LARGEST = 64 * 1024 * 1024  # bytes; the receipt of 5,000 files has 0.7 MB


# Errors which only mean that there is no regular file of that name.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO)


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises OSError, with an errno in NO_FILE if it is not a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
    raise OSError(number, "Not a regular file", str(path))


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a regular file. Raises OSError; ValueError for more than `most` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most) + 1)  # a read allocates all it requests
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return data


def read_json(path: Path, most: int = LARGEST) -> Any:
    """Parse a JSON file. Raises OSError, ValueError."""
    return parse_json(read_file(path, most))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text. Raises ValueError for any invalid text."""
    collecting = gc.isenabled()
    gc.disable()  # ten million lists took 11 seconds to be counted again and again, and 2 without
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit into this machine's memory") from None
    finally:
        if collecting:
            gc.enable()
