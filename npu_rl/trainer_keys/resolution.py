"""The result of resolving one key."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.trainer_keys.value_types import ANY, ExpectedType


@dataclass(frozen=True)
class KeyResolution:
    """What is known of a key.

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
