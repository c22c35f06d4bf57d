"""What a reader says about one key."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.kinds import ANY, Kinds


@dataclass(frozen=True)
class Verdict:
    """known: some reader takes it; message: what is to be told then, and the error if none does.

    kinds: what it takes. where: file:line of the reader. section: it holds keys, not a value.
    unchecked: whose keys these are, if nothing here can read them.
    """

    known: bool
    message: str = ""
    kinds: Kinds = ANY
    where: str | None = None
    section: bool = False
    unchecked: str = ""


def unknown(message: str, right: str | None = None) -> Verdict:
    """The verdict on a key nobody reads, with the nearest right name."""
    return Verdict(False, f"{message}; did you mean {right!r}?" if right else message)
