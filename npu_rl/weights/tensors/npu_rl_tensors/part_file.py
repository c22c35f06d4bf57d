"""Files that are not whole yet: their names, and the checksum of what is written to them."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

_STEP, _SAMPLE = 256, 8  # bytes


def part_of(target: Path) -> Path:
    """Return a name beside a file that no other process writes to.

    Ray runs a task again when its host does not answer; the first may still be writing.
    """
    return target.with_name(f"{target.name}.{os.urandom(4).hex()}.part")


class SampledSum:
    """The CRC-32 of 8 bytes of each 256 of a file.

    A disk or a file server loses sectors and pages, of 512 bytes or more, and each has two samples. The CRC-32 of all
    bytes made a cast 21 % slower.
    """

    def __init__(self) -> None:
        self.crc32 = 0
        self._at = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the bytes that follow."""
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


class SummedFile:
    """A new file that is written from its beginning to its end. `sum`: of what was written."""

    def __init__(self, path: Path, *, buffering: int = -1) -> None:
        self._file: Any = path.open("xb", buffering=buffering)
        self.name = str(path)
        self.sum = SampledSum()

    def write(self, data: bytes | memoryview) -> int:
        """Write as much of the data as the system takes, and return how much that is."""
        count: int = self._file.write(data)
        self.sum.update(memoryview(data).cast("B")[:count])
        return count

    def tell(self) -> int:
        """Return how many bytes were written."""
        position: int = self._file.tell()
        return position

    def flush(self) -> None:
        """Hand everything to the system."""
        self._file.flush()

    def fileno(self) -> int:
        """Return the handle."""
        number: int = self._file.fileno()
        return number

    def __enter__(self) -> SummedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
