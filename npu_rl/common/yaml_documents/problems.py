"""Problems in a manifest or recipe, and the one error that lists all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from npu_rl.common.errors import NpuRlError, UsageError
from npu_rl.common.printable import counted

COMMAND_LINE = "command line: "
"""The prefix of the place of a value that an argument sets."""
COMMAND_LINE_PLACE = "the command line"

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
        if self.argument:
            is_key = self.argument.startswith(f"{dotted(self.path)}=")
            return f"{self.argument}: {self.message if is_key else self.without_place()}"
        return f"{place(self.file, self.line)}: {self.without_place()}"

    @property
    def argument(self) -> str:
        """KEY=VALUE of the command line that the value is from, "" for one in a file."""
        return self.file.removeprefix(COMMAND_LINE) if self.file.startswith(COMMAND_LINE) else ""

    def without_place(self) -> str:
        """Return the key and the message, without the place."""
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


class Invalid(NpuRlError):
    """A file that does not follow its schema; `problems` has every error found.

    The exit code is that of a wrong argument if arguments caused all of them.
    """

    noun: ClassVar[str]

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first, count = self.problems[0], len(self.problems)
        where: str | None = place(first.file, first.line)
        if not all(one.argument for one in self.problems):
            what = f"{name} is not a valid {self.noun}: {counted(count, 'error')}"
            where = where if count == 1 else None  # each line of `why` has its place
        else:
            what = f"Invalid argument '{first.argument}'" if count == 1 else f"{count} invalid arguments"
            where, self.exit_code = COMMAND_LINE_PLACE, UsageError.exit_code
        why = first.without_place() if count == 1 else "\n".join(map(str, self.problems))
        super().__init__(what, where=where, why=why, hint=_fixes(self.problems))


def _fixes(problems: Sequence[Problem]) -> str | None:
    """Return what to write for the unknown keys that have a likely spelling; None without any."""
    return "\n".join(_fix(one) for one in problems if one.suggestions) or None


def _fix(problem: Problem) -> str:
    """Return the argument to type instead, or the key to write instead of one in a file."""
    key, _, value = problem.argument.partition("=")
    if key == dotted(problem.path):
        return f"Write {' or '.join(f'{name}={value}' for name in problem.suggestions)}."
    return f"Write {' or '.join(problem.suggestions)} for {dotted(problem.path)}."


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
