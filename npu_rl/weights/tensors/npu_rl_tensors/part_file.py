"""Incomplete output files: their names, and a checksum of the data written to them."""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEP, _SAMPLE = 256, 8  # bytes


def part_of(target: Path) -> Path:
    """Return a path beside the target that no other process writes to.

    Ray runs a task again when its host does not answer; the first may still be writing.
    """
    return target.with_name(f"{target.name}.{os.urandom(4).hex()}.part")


class SampledSum:
    """A file's CRC-32 over 8 bytes in every 256.

    A disk or a file server loses sectors and pages, of 512 bytes or more, and each has two samples. The CRC-32 of all
    bytes made a cast 21 % slower.
    """

    def __init__(self) -> None:
        self.crc32 = 0
        self._at = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the file."""
        view = memoryview(data).cast("B")
        begun = self._at % _STEP
        if 0 < begun < _SAMPLE:  # the last bytes ended within a sample
            self.crc32 = zlib.crc32(view[: _SAMPLE - begun], self.crc32)
        later = view[-self._at % _STEP :]
        whole = len(later) // _STEP * _STEP
        if whole:
            self.crc32 = zlib.crc32(later[:whole].cast("Q")[:: _STEP // _SAMPLE].tobytes(), self.crc32)
        self.crc32 = zlib.crc32(later[whole : whole + _SAMPLE], self.crc32)
        self._at += len(view)


class SummedFile(io.BufferedWriter):
    """A new file that is written sequentially. `sum` is the checksum of the data written."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "x"))
        self.sum = SampledSum()

    def write(self, data: Any) -> int:
        """Write all of the data."""
        with _named(self):
            count = super().write(data)
        self.sum.update(data)
        return count

    def flush(self) -> None:
        """Flush the buffer to the operating system."""
        with _named(self):
            super().flush()


def sync(file: Any) -> None:
    """Flush a file, and return once its data is on disk."""
    with _named(file):
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _named(file: Any) -> Iterator[None]:
    """Add the file's name to system errors, which lack it for a handle; a full disk was blamed on the input."""
    try:
        yield
    except OSError as error:
        error.filename = str(file.name)
        raise
