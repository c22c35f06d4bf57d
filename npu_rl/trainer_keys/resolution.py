"""What a reader says about one key."""

from __future__ import annotations

from dataclasses import dataclass

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
