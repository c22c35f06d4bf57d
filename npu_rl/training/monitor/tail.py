"""Reading the lines of a log while it grows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.bounded import NO_FILE
from npu_rl.common.errors import NpuRlError

LARGEST_LOG = 8 << 30  # bytes; one of a terabyte costs nothing to make, and hours to read


class Tail:
    """New complete lines of a growing file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0  # offset of the first byte of the next line

    def lines(self) -> Iterator[str]:
        """Yield the lines completed since the last call, without line ends; empty lines are skipped.

        A carriage return ends a line too, so that each state of a progress bar is a line. Invalid UTF-8 is replaced.
        """
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._next)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._next += len(line)
                text = line[:-1].decode("utf-8", "replace")
                yield from filter(None, text.split("\r"))


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
