"""Problems in a manifest or recipe, and the one error that lists all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from npu_rl.common.errors import NpuRlError

KeyPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 80


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        line: 0 if the value is not in a file.
        suggestions: Full keys that an unknown key may mean, the likeliest first.
    """

    file: str
    line: int
    path: KeyPath
    message: str
    suggestions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{place(self.file, self.line)}: {self.without_place()}"

    def without_place(self) -> str:
        """Return the key and the message, without the place."""
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


class Invalid(NpuRlError):
    """A file that does not follow its schema; `problems` has every error found."""

    noun: ClassVar[str]

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first, is_one = self.problems[0], len(self.problems) == 1
        super().__init__(
            f"{name} is not a valid {self.noun}: {'1 error' if is_one else f'{len(self.problems)} errors'}",
            where=place(first.file, first.line),
            why=first.without_place() if is_one else "\n".join(map(str, self.problems)),
            hint="Correct these lines and run the command again.",
        )


def place(file: str, line: int) -> str:
    """Return `file:line`, or only `file` for a value that is not in a file, such as an argument."""
    return f"{file}:{line}" if line else file


def dotted(path: KeyPath) -> str:
    """Return a key path as text: components.verl.sources[0].git."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text


def shown(value: str) -> str:
    """Return a value for a message: quoted, escaped, shortened, and without the credentials of a URL."""
    from npu_rl.common.masking import (
        without_passwords,  # its patterns take milliseconds, and few values are shown
    )

    text = repr(without_passwords(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...'"
