"""What a reader says about one key and its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_rl.config.problems import shown
from npu_rl.trainer_keys.value_types import ANY, Kinds


@dataclass(frozen=True)
class Verdict:
    """What is known of a key.

    Attributes:
        known: Whether some reader takes it.
        message: What is to be told then; the error if none does.
        kinds: What it takes.
        where: file:line of the reader.
        section: Whether it holds keys, not a value.
        unchecked: Whose keys these are, if nothing here can read them.
        right: The trainer's key that was meant, dotted, if the error has one.
    """

    known: bool
    message: str = ""
    kinds: Kinds = ANY
    where: str | None = None
    section: bool = False
    unchecked: str = ""
    right: str = ""


def unknown(message: str, right: str | None = None) -> Verdict:
    """The verdict on a key nobody reads. right: the trainer's key that was meant, dotted."""
    return Verdict(False, message, right=right or "")


@dataclass(frozen=True)
class Refused:
    """A value that the code raises on. names: what it accepts instead, () for a number. where: file:line.

    certain: the code raises whatever else holds; else it does where it comes to that line.
    """

    value: Any
    names: tuple[str, ...]
    where: str
    certain: bool

    def __str__(self) -> str:
        if self.names:
            return f"must be one of {', '.join(self.names)}, not {shown(self.value)}"
        return f"must not be {self.value}"
