"""Reading the lines of a log while it grows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.bounded import NO_FILE, open_file
from npu_rl.common.errors import NpuRlError

LARGEST_LOG = 8 << 30  # bytes; one of a terabyte costs nothing to make, and hours to read
_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 20  # bytes; a log without line ends must not fill the memory
_LINE_ENDS = re.compile(rb"\r\n|\n|\r")


class Tail:
    """New complete lines of a growing file, read without waiting."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._next = offset
        self._unfinished = b""

    @property
    def offset(self) -> int:
        """Offset of the first byte not yet returned, where a later `follow` can continue."""
        return self._next - len(self._unfinished)

    def lines(self) -> Iterator[str]:
        """Yield the lines completed since the last call, without line ends; empty lines are skipped."""
        try:
            file = open_file(self._path)
        except OSError as error:
            if error.errno in NO_FILE:
                return
            raise
        with file:
            file.seek(self._next)
            while chunk := file.read(_CHUNK):
                self._next += len(chunk)
                yield from self._take(chunk)

    def rest(self) -> str:
        """Return the text after the last line end, left by a process that died in the middle of a line."""
        part, self._unfinished = self._unfinished, b""
        return part.decode("utf-8", "replace").strip("\r")

    def _take(self, chunk: bytes) -> list[str]:
        data = self._unfinished + chunk
        # a \r that ends the data may be the first half of \r\n
        whole = data[:-1] if data.endswith(b"\r") else data
        *lines, last = _LINE_ENDS.split(whole)
        self._unfinished = last + data[len(whole) :]
        if len(self._unfinished) > _LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = b""
        return [line.decode("utf-8", "replace") for line in lines if line]


def require_bounded_log(path: Path) -> None:
    """Raise NpuRlError if a log is larger than any real run's. A missing log is accepted."""
    try:
        size = path.stat().st_size
    except OSError as error:
        if error.errno in NO_FILE:
            return
        raise
    if size > LARGEST_LOG:
        raise NpuRlError(
            "A log of a run is too large",
            where=str(path),
            why=f"The file has {size} bytes of at most {LARGEST_LOG}.",
            hint="Move it away: the run then has no such log of that attempt.",
        )


def follow(path: Path, from_offset: int = 0) -> Tail:
    """Return a reader for lines appended to a file, which need not exist yet.

    A carriage return ends a line too, so that each state of a progress bar is a line. Invalid UTF-8 is replaced. Memory
    is bounded: a line of more than 1 MiB is returned in parts.
    """
    return Tail(path, from_offset)
