"""Reading the lines of a log while it grows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


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
