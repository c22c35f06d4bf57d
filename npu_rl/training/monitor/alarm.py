"""An alarm during a run: the problem, its cause, where to look and what to do."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (
    *("nan", "constant-reward", "no-progress", "transfer", "empty-answers"),
    *("entropy-collapse", "rising-difference", "lost-node", "stopped-log"),
)


@dataclass(frozen=True)
class Alarm:
    """An alarm during a run.

    Attributes:
        kind: One of KINDS.
        place: The metric or file to check.
        fatal: Whether it ends the run.
        hint: What to do.
        step: The step it is about; None if unknown.
        count: How often it was raised for this cause, with this time.
    """

    kind: str
    message: str
    cause: str
    place: str
    fatal: bool = False
    hint: str = ""
    step: int | None = None
    count: int = 1
