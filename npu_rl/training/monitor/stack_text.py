"""Parsing of Python stacks printed by faulthandler."""

from __future__ import annotations

import re
from dataclasses import dataclass

# `Current thread 0x00007f (most recent call first):`, then `  File "/a/b.py", line 3 in name`; 3.14 adds the thread's
# name.
_THREAD = re.compile(r"(?:Current thread|Thread)\s.*:(?:\s\".*\")?\s*\Z")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)')


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def short(self) -> str:
        """The frame with the last two components of its file's path."""
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.line} in {self.function}"


Stack = tuple[Frame, ...]
"""The frames of a thread, the innermost first."""


def parse_stacks(text: str) -> list[Stack]:
    """Return the stacks of a process's threads, main thread first. Other lines are skipped."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FRAME.fullmatch(line)):
            threads[-1].append(Frame(found["file"], int(found["line"]), found["function"]))
    # faulthandler prints the newest thread first, and the main thread last
    return [tuple(frames) for frames in reversed(threads) if frames]
