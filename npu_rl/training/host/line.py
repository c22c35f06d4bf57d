"""One line of a report of `npu-rl doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, RED, UNKNOWN, NOTE = "ok", "red", "not known", "note"
STATES = (RED, UNKNOWN, NOTE, OK)
"""States in the order of a report: what has to be mended first."""


@dataclass(frozen=True)
class DoctorLine:
    """One line of the report.

    Attributes:
        id: Stable name, by which docs and tests refer to it.
        what: The part of the host.
        wanted: What it should be, and who says so in parentheses; "" if nothing is wanted.
        command: The command that shows it on the host.
        fix: What to do; "" where nothing is.
        state: By default red with a fix, and ok without.
        stops: Whether a training can't work as it is, so that `train` refuses; of red lines only.
    """

    id: str
    what: str
    found: str
    wanted: str
    command: str
    fix: str = ""
    state: str = ""
    stops: bool = False

    def __post_init__(self) -> None:
        """Set the state that follows from the fix."""
        object.__setattr__(self, "state", self.state or (RED if self.fix else OK))


def shortened(texts: list[str], most: int = 8) -> str:
    """Return some texts on one line, and the number of the others."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
