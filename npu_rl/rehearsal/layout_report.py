"""What a rehearsal of a layout found: what was checked, with figures, and what was not, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_rl.sizing.divisibility import Check


@dataclass(frozen=True)
class NotRehearsed:
    """Something a layout has that could not be tried here. Never counted as passed."""

    what: str
    why: str


@dataclass(frozen=True)
class LayoutReport:
    """The whole of it. `ok` says that nothing that was checked is wrong, not that everything was checked."""

    checks: tuple[Check, ...]
    not_rehearsed: tuple[NotRehearsed, ...] = ()
    stood_in: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the run record and for --json."""
        return {
            "ok": self.ok,
            "seconds": self.seconds,
            "checks": [check.to_json() for check in self.checks],
            "not_rehearsed": [vars(item) for item in self.not_rehearsed],
            "stood_in": list(self.stood_in),
        }

    def lines(self) -> list[str]:
        """The report for people."""
        said = [_line(check) for check in self.checks]
        said += [f"not rehearsed: {item.what}: {item.why}" for item in self.not_rehearsed]
        said += [f"stood in for: {what}" for what in self.stood_in]
        return said


def _line(check: Check) -> str:
    figures = ", ".join(f"{name} {value}" for name, value in check.figures.items())
    return f"{'ok    ' if check.ok else 'WRONG '} {check.name}: {figures}" + (
        "" if check.ok else f"\n        {check.why}"
    )
