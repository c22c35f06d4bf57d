"""Results of resolving a key and checking its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_rl.common.yaml_documents.problems import shown
from npu_rl.recipes.trainer_code.value_types import ANY, ExpectedType


@dataclass(frozen=True)
class KeyResolution:
    """Facts about a key.

    Attributes:
        known: Whether some code reads it.
        message: A note on a known key; the error for an unknown one.
        expected: The type of its value.
        where: file:line of the code that reads it.
        section: Whether it holds keys, not a value.
        unchecked: What reads the keys of this section, if they can't be checked here.
        right: The trainer's key that was probably meant, dotted; empty if there is none.
    """

    known: bool
    message: str = ""
    expected: ExpectedType = ANY
    where: str | None = None
    section: bool = False
    unchecked: str = ""
    right: str = ""


def unknown(message: str, right: str | None = None) -> KeyResolution:
    """Return the resolution of a key that nothing reads.

    Args:
        right: The trainer's key that was probably meant, dotted.
    """
    return KeyResolution(False, message, right=right or "")


@dataclass(frozen=True)
class RefusedValue:
    """A value for which the code raises an error.

    Attributes:
        value: The value, or the refused item of a list.
        names: The accepted names; empty for a number.
        where: file:line of the code that raises.
        certain: Whether the code always raises; else it does if it reaches that line.
    """

    value: Any
    names: tuple[str, ...]
    where: str
    certain: bool

    def __str__(self) -> str:
        if self.names:
            value = shown(self.value) if isinstance(self.value, str) else self.value
            return f"must be one of {', '.join(self.names)}, not {value}"
        return f"must not be {self.value}"
