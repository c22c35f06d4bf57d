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
        stops: Whether a training can't work as it is, so that `train` refuses; of red lines only.
    """

    id: str
    state: str
    what: str
    found: str
    wanted: str
    command: str
    fix: str = ""
    stops: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the line as documented in docs/json.md."""
        return {
            "id": self.id,
            "state": self.state,
            "what": self.what,
            "found": self.found,
            "wanted": self.wanted,
            "command": self.command,
            "fix": self.fix,
            "stops": self.stops,
        }
